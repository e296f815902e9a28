"""Ops with regions with one operand more, or without operands and results."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from partir_search.ir.core import Op, Operand, Region, Value
from partir_search.ir.data_flow import DataFlowEdges

# By primitive, the params that count its first operands, in order.
_COUNTS: dict[str, tuple[str, ...]] = {
    "scan": ("num_consts",),
    "while": ("cond_nconsts", "body_nconsts"),
    **dict.fromkeys(("cond", "remat2", "checkpoint", "optimization_barrier"), ()),
}


def with_constant(op: Op, operand: Operand, args: Sequence[Value]) -> Op:
    """A region op with one more operand, the same in every iteration.

    Args:
      args: the new first argument of each region.

    Raises:
      KeyError: a primitive with regions of another kind.
    """
    params = {**op.params, **{name: op.params[name] + 1 for name in _COUNTS[op.prim]}}
    params.pop("linear", None)
    if isinstance(prevented := params.get("prevent_cse"), tuple):
        params["prevent_cse"] = (False, *prevented)
    operands = (operand, *op.operands)
    if op.prim == "while":  # of the condition, and of the body
        first = op.params["cond_nconsts"]
        operands = (operand, *op.operands[:first], operand, *op.operands[first:])
    elif op.prim == "cond":  # the branch's number comes first
        operands = (op.operands[0], operand, *op.operands[1:])
    regions = tuple(
        Region((arg, *r.args), r.ops, r.results) for arg, r in zip(args, op.regions, strict=True)
    )
    return dataclasses.replace(op, operands=operands, regions=regions, params=params, key=None)


def may_lose_parts(op: Op) -> bool:
    """True for ops with parts dropped by `without_operands` and `without_results`."""
    return op.prim in _COUNTS


def without_operands(op: Op, dropped: Collection[int], edges: DataFlowEdges) -> Op:
    """A region op without operands whose arguments no region reads.

    Args:
      dropped: positions of operands, no carries.
      edges: data flow of `op`.

    Raises:
      KeyError: a primitive with regions of another kind.
    """
    params, first = {k: v for k, v in op.params.items() if k != "linear"}, 0
    for name in _COUNTS[op.prim]:
        count = op.params[name]
        params[name] = sum(i not in dropped for i in range(first, first + count))
        first += count
    if isinstance(prevented := params.get("prevent_cse"), tuple):
        params["prevent_cse"] = tuple(x for i, x in enumerate(prevented) if i not in dropped)
    gone = {(r, place) for i, r, place, _ in edges.inputs if i in dropped}
    gone |= {(r, place) for r, place, *of in edges.shared if tuple(of) in gone}
    regions = tuple(
        Region(tuple(a for i, a in enumerate(x.args) if (r, i) not in gone), x.ops, x.results)
        for r, x in enumerate(op.regions)
    )
    operands = tuple(x for i, x in enumerate(op.operands) if i not in dropped)
    return dataclasses.replace(op, operands=operands, regions=regions, params=params, key=None)


def without_results(op: Op, dropped: Collection[int], edges: DataFlowEdges) -> Op:
    """A region op without results, each the result of one run of a region.

    Args:
      dropped: positions of results without readers, none of a carry.
      edges: data flow of `op`.
    """
    gone = {(r, place) for r, place, j, _ in edges.outputs if j in dropped}
    regions = tuple(
        Region(x.args, x.ops, tuple(y for i, y in enumerate(x.results) if (r, i) not in gone))
        for r, x in enumerate(op.regions)
    )
    results = tuple(x for j, x in enumerate(op.results) if j not in dropped)
    return dataclasses.replace(op, results=results, regions=regions, key=None)
