"""Train state between the layers' order and the order of a pipeline's stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from partir_search.arguments.axes import auto_axes, within
from partir_search.ir.core import Module
from partir_search.ir.staged_state import StagedArguments
from partir_search.passes.pipeline.layer_order import to_layers, to_stages


def reorder_stages(
    module: Module,
    shardings: Sequence[NamedSharding],
    arguments: Sequence[int],
    values: Sequence[Any],
    into: bool,
) -> list[Any]:
    """Arguments with the layers of a staged state by stage, or back in the layers' order.

    Args:
      module: the program.
      shardings: of all arguments of the program.
      arguments: positions of some arguments.
      values: arrays, one per position.
      into: True to bring layers to their stages, False to bring them back.

    Raises:
      ValueError: `arguments` has some layers of a parameter and not all.
    """
    found = dict(zip(arguments, values, strict=True))
    for group in module.staged.groups:
        held = [i for i in group.arguments if i in found]
        if not held:
            continue
        if len(held) < len(group.arguments):
            missing = next(i for i in group.arguments if i not in found)
            raise ValueError(
                f"the layers of {module.arg_paths[held[0]]} lie in further arguments of the step,"
                f" {module.arg_paths[missing]}; give the step all layers in one argument"
            )
        places = [shardings[i] for i in group.arguments]
        moved = _moved(group, places, [found[i] for i in group.arguments], into)
        found.update(zip(group.arguments, moved, strict=True))
    return [found[i] for i in arguments]


def _moved(
    group: StagedArguments, places: Sequence[NamedSharding], values: Sequence[Any], into: bool
) -> list[Any]:
    """Arrays of a group in the other order, one group at a time: no second copy of the state."""
    auto = [NamedSharding(auto_axes(s.mesh), s.spec) for s in places]  # as reshapes need
    with within(auto[0].mesh):
        arrays = [jax.device_put(x, s) for x, s in zip(values, auto, strict=True)]
        found = jax.jit(_move(group, into), out_shardings=auto)(*arrays)
    return [jax.device_put(x, s) for x, s in zip(found, places, strict=True)]


def _move(group: StagedArguments, into: bool) -> Callable[..., list[Any]]:
    move = to_stages if into else to_layers
    return lambda *rows: move(rows, group.order)
