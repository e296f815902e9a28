"""Results of backward layers on cotangents of zero.

A stage without an item runs its layers all the same, on cotangents of zero. All gradients are then
zero, if every cotangent arrives in the carry. A loss computed inside of the layers has a cotangent
of its own, often a constant.
"""

from __future__ import annotations

from collections.abc import Callable

from partir_search.ir.core import Op, Operand, Region, Value
from partir_search.ir.role import Role
from partir_search.ir.rule import OpRule
from partir_search.passes.pipeline.layers import Layers
from partir_search.rules.registry import RuleTable, role_of


def results_without_item(backward: Layers) -> frozenset[int]:
    """Positions of results of a backward scan not known to be zero for a carry of zeros.

    All results if the carry has values of the head besides cotangents: zeros may stand in a
    denominator.
    """
    region, count = backward.region, len(backward.carry)
    first = len(backward.consts)
    read = {v for op in region.ops for _, v in op.inputs()}
    handed_on = zip(region.args[first:], region.results[:count], strict=False)
    if any(a is x and a in read for a, x in handed_on):
        return frozenset(range(len(region.results)))
    carry = set(range(count))
    while True:
        args = {region.args[first + i] for i in carry}
        zeros = _zeros(region, args, RuleTable())
        found = {i for i, x in enumerate(region.results) if not _is_zero(x, zeros)}
        if carry.isdisjoint(found):
            return frozenset(found)
        carry -= found


def _zeros(region: Region, args: set[Value], rule_of: Callable[[Op], OpRule]) -> set[Value]:
    """Values of a region known to be zero, if some arguments are."""
    zeros = set(args)
    for op in region.ops:
        rule = rule_of(op)
        if op.regions:
            zeros |= _zero_results(op, rule, zeros, rule_of)
            continue
        groups = ((0,),) if role_of(op) is Role.CAST else rule.linear
        if any(all(_is_zero(op.operands[i], zeros) for i in group) for group in groups):
            zeros.update(op.results)
    return zeros


def _zero_results(
    op: Op, rule: OpRule, zeros: set[Value], rule_of: Callable[[Op], OpRule]
) -> set[Value]:
    """Results of an op with regions known to be zero."""
    edges = rule.data_flow
    starts = [set[Value]() for _ in op.regions]
    for edge in edges.inputs:
        if _is_zero(op.operands[edge.operand], zeros):
            starts[edge.region].add(op.regions[edge.region].args[edge.argument])
    while True:
        inner = [_zeros(r, args, rule_of) for r, args in zip(op.regions, starts, strict=True)]
        lost = False
        for region, result, to, argument in edges.carries:
            target = op.regions[to].args[argument]
            x = op.regions[region].results[result]
            if target in starts[to] and not _is_zero(x, inner[region]):
                starts[to].discard(target)
                lost = True
        if not lost:
            break
    candidates: dict[int, bool] = {}
    for region, result, at, _ in edges.outputs:
        found = _is_zero(op.regions[region].results[result], inner[region])
        candidates[at] = candidates.get(at, True) and found
    for region, argument, at in edges.finals:
        found = op.regions[region].args[argument] in starts[region]
        candidates[at] = candidates.get(at, True) and found
    return {op.results[i] for i, zero in candidates.items() if zero}


def _is_zero(x: Operand, zeros: set[Value]) -> bool:
    return x in zeros if isinstance(x, Value) else x.is_zero()
