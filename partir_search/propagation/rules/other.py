"""Primitives that fit no family: barriers, constraints of the user, no-ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partir_search.ir.core import Op
from partir_search.ir.rule import OpRule
from partir_search.propagation.rules.registry import register, result_shape


def _same(_: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    return args


@register("sharding_constraint", "mesh_cast", "reshard", "pvary", "copy_to_host_async")
def constraint(op: Op) -> OpRule:
    """Identity; what the user constrains is decided before any tactic (see `constraints.py`).

    Not elementwise, so that search does not merge the value before with the value after.
    """
    rank = len(result_shape(op))
    return OpRule(
        sizes=result_shape(op),
        operands=(tuple(range(rank)),),
        results=(tuple(range(rank)),),
        reducers=("",) * rank,
        local=_same,
    )


@register("optimization_barrier")
def barrier(op: Op) -> OpRule:
    """Every operand passes through with its own dims."""
    dims: list[tuple[int, ...]] = []
    sizes: list[int] = []
    for x in op.operands:
        dims.append(tuple(range(len(sizes), len(sizes) + len(x.type.shape))))
        sizes += x.type.shape
    # A factor lies in one result only, so no other result may see it looped over.
    blocked = frozenset(range(len(sizes))) if len(dims) > 1 else frozenset()
    return OpRule(
        sizes=tuple(sizes),
        operands=tuple(dims),
        results=tuple(dims),
        reducers=("",) * len(sizes),
        blocked=blocked,
        elementwise=True,
    )
