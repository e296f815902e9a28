"""Sums that grow from layer to layer, computed once.

`x = layer(sum(earlier))` adds the results of all earlier layers up in each layer, and so does the
gradient of each result: the number of additions grows with the layer, and no two layers are alike.
A sum of k addends is the sum of the first k - 1 that the layer before computed, and one addition
more. With equal additions computed once, each layer adds one value to a sum handed on. The
additions stand right behind their operands: transposition leaves them in any order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set

from partir_search.ir.analysis.readers import read_ops
from partir_search.ir.core import Module, Op, Region, Value
from partir_search.ir.role import Role
from partir_search.passes.roll.again import reading
from partir_search.rules.registry import role_of


def with_equal_sums(module: Module, equals: Mapping[int, Value]) -> Module:
    """Module with equal additions of a region computed once; the same one without any.

    Args:
      equals: by value id, the first of all values known to be equal.
    """
    body = _merged(module.body, equals)
    return module if body is module.body else dataclasses.replace(module, body=body)


def _merged(region: Region, equals: Mapping[int, Value]) -> Region:
    ops = [_with_regions(op, equals) for op in region.ops]
    first = {r: op for op in ops if role_of(op) is Role.ADDITION for r in op.results}
    same: dict[Value, Value] = {}
    for value, op in first.items():
        equal = equals.get(value.id)
        found = first.get(equal) if equal is not None else None
        if equal is not None and found is not None and found.backward == op.backward:
            same[value] = equal
    if not same:
        if all(a is b for a, b in zip(ops, region.ops, strict=True)):
            return region
        return Region(region.args, tuple(ops), region.results)
    results = tuple([same.get(x, x) if isinstance(x, Value) else x for x in region.results])
    early = _early(reading(ops, same), set(same.values()))
    return Region(region.args, tuple(read_ops(early, results)), results)


def _early(ops: Sequence[Op], sums: Set[Value]) -> list[Op]:
    """Ops with the additions that make or read some sums right behind their operands.

    The last sum has one reader, was computed once already, and is found by the sum that it reads.
    """
    place: dict[Value, int] = {}
    keys: list[tuple[int, bool, int]] = []
    for at, op in enumerate(ops):
        values = {*op.results, *(x for _, x in op.inputs())}
        early = role_of(op) is Role.ADDITION and not sums.isdisjoint(values)
        to = max((place.get(x, -1) for _, x in op.inputs()), default=-1) if early else at
        place.update(dict.fromkeys(op.results, to))
        keys.append((to, early, at))
    return [ops[at] for *_, at in sorted(keys)]


def _with_regions(op: Op, equals: Mapping[int, Value]) -> Op:
    if not op.regions:
        return op
    regions = tuple([_merged(region, equals) for region in op.regions])
    if all(a is b for a, b in zip(regions, op.regions, strict=True)):
        return op
    return op.with_parts(op.operands, op.results, regions)
