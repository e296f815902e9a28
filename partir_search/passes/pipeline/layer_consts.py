"""Operands of every layer, by stage: the stages of a tick work on different microbatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax

from partir_search.ir.core import Operand, Value
from partir_search.passes.pipeline.body_values import BodyValues
from partir_search.passes.pipeline.layers import Layers
from partir_search.passes.pipeline.loop_parts import LoopParts
from partir_search.passes.pipeline.operands import Operands

NONE: Mapping[Value, Any] = MappingProxyType({})


def layer_consts(
    layers: Layers,
    parts: LoopParts,
    values: BodyValues,
    microbatches: Any,
    operands: Operands,
    travelling: Mapping[Value, Any] = NONE,
) -> tuple[list[Any], list[int | None]]:
    """Operands of every layer, and their axes of stages: None for one value of all stages.

    Args:
      microbatches: [stages] numbers; what differs between microbatches is computed by stage.
      travelling: values that pass from stage to stage, with a dim of stages.
    """

    def passes(x: Operand) -> bool:
        return isinstance(x, Value) and x in travelling

    own = [x for x in layers.consts if parts.varies(x) and not passes(x)]
    alike = [x for x in layers.consts if not parts.varies(x) and not passes(x)]
    same = iter(values.compute(alike, operands.known))
    different: Iterator[Any] = iter(())
    if own:
        for_stages: Callable[..., list[Any]] = jax.vmap(
            lambda number: values.compute(own, operands.of_microbatch(number))
        )
        different = iter(for_stages(microbatches))
    consts, axes = list[Any](), list[int | None]()
    for x in layers.consts:
        varies = parts.varies(x)
        if isinstance(x, Value) and x in travelling:
            consts.append(travelling[x])
        else:
            consts.append(next(different) if varies else next(same))
        axes.append(0 if varies or passes(x) else None)
    return consts, axes
