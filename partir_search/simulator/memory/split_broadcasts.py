"""Statistics of parts of the last dim, stored repeated (`XlaTraits.stores_split_broadcasts`).

A norm by groups splits the last dim, [..., d] to [..., g, d / g], and merges the parts again.
Neither reshape is free for a dim in tiles: XLA:TPU computes on [..., d] instead, and stores mean
and scale of each group as arrays of [..., d], read by forward and backward pass. Statistics of
the backward pass are read at once, and not stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partir_search.ir.analysis.def_use import DefUse
from partir_search.ir.core import Module, Op, Value
from partir_search.ir.role import Role
from partir_search.ir.rule import Dims, OpRule
from partir_search.simulator.op_kinds import is_reduction


def split_broadcasts(module: Module, rules: Sequence[OpRule], uses: DefUse) -> Mapping[int, int]:
    """By id of a reduction's result, the stored copies of each element.

    Args:
      rules: per op id.
    """
    split: set[int] = set()
    merged: set[int] = set()
    for op in module.ops:
        if _merges(op, rules[op.id].results, rules[op.id].operands, rules[op.id]) or any(
            v.id in split for v in _alike(op, rules[op.id])
        ):
            split.add(op.results[0].id)
    if not split:
        return {}
    for op in reversed(module.ops):
        rule = rules[op.id]
        if _merges(op, rule.operands, rule.results, rule):
            merged.update(v.id for _, v in op.inputs())
        elif op.results and op.results[0].id in merged:
            merged.update(v.id for v in _alike(op, rule))
    found: dict[int, int] = {}
    for op in module.ops:
        if len(op.results) == 1 and op.results[0].id in split & merged:
            times = op.results[0].type.shape[-1]
            for i, x in op.inputs():
                if _spreads(rules[op.id], i):
                    for v in _reductions(x, rules, uses):
                        found[v] = max(found.get(v, 1), times)
    return found


def _merges(op: Op, split: Sequence[Dims], merged: Sequence[Dims], rule: OpRule) -> bool:
    """True for a reshape between two innermost dims of `split` and the last dim of `merged`."""
    if rule.role is not Role.RESHAPE or len(split[0]) < 2 or not merged[0]:
        return False
    last = len(merged[0]) - 1
    inner = split[0][-2:]
    return all(f >= 0 and rule.dim_of(merged[0], f) == last for f in inner)


def _alike(op: Op, rule: OpRule) -> list[Value]:
    """Operands of an elementwise op with the shape of its result."""
    if not rule.elementwise or op.regions or len(op.results) != 1 or rule.role is Role.RESHAPE:
        return []
    shape = op.results[0].type.shape
    return [v for _, v in op.inputs() if v.type.shape == shape]


def _spreads(rule: OpRule, number: int) -> bool:
    """True if an operand is repeated along the last dim of the result, but not along the second."""
    dims, result = rule.operands[number], rule.results[0]
    if not rule.elementwise or len(result) < 2:
        return False
    return result[-1] >= 0 and result[-1] not in dims and result[-2] >= 0 and result[-2] in dims


def _reductions(value: Value, rules: Sequence[OpRule], uses: DefUse) -> list[int]:
    """Ids of the reductions' results of which a value is an elementwise function."""
    found: list[int] = []
    waiting, seen = [value], {value.id}
    while waiting:
        v = waiting.pop()
        maker = uses.makers[v.id]
        if maker is None:
            continue
        if is_reduction(rules[maker.id]) and not maker.backward:
            found.append(v.id)
        elif rules[maker.id].elementwise and not maker.regions:
            new = [x for _, x in maker.inputs() if x.id not in seen]
            seen.update(x.id for x in new)
            waiting += new
    return found
