"""Analysis of repeated elements: dims of constant values, made by broadcasts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set

from partir_search.ir.core import Module, Op, Value
from partir_search.ir.kind import Kind
from partir_search.ir.role import Role
from partir_search.ir.rule import OpRule

Repeats = Mapping[int, frozenset[int]]
"""Dims with equal elements of each value, by id; values without repeated dims are left out."""


def repeated_dims(module: Module, rules: Sequence[OpRule]) -> Repeats:
    """Repeated dims of results of broadcasts, and of elementwise ops on repeated values.

    An elementwise op keeps the dims if all operands but scalars and broadcasts of scalars repeat
    the same ones.

    Args:
      rules: per op id.
    """
    found: dict[int, frozenset[int]] = {}
    for op in module.ops:
        if dims := _repeated(op, rules[op.id], found):
            found[op.results[0].id] = dims
    return found


def copies(repeated: Set[int], shape: Sequence[int]) -> int:
    """Copies of each element in a value of `shape` with `repeated` dims."""
    return math.prod(shape[d] for d in repeated)


def _repeated(op: Op, rule: OpRule, found: Repeats) -> frozenset[int]:
    """Repeated dims of an op's result."""
    none = frozenset[int]()
    if op.regions or len(op.results) != 1:
        return none
    if rule.role is Role.BROADCAST:
        kept, large = set(rule.operands[0]), _large(op.results[0])
        return frozenset(d for d in large if rule.results[0][d] not in kept)
    arrays = [v for _, v in op.inputs() if v.type.shape]
    if rule.kind is not Kind.ELEMENTWISE or not arrays:
        return none
    every = _large(arrays[0])
    dims = {found.get(v.id, none) for v in arrays}
    partly = dims - {every}
    return every if not partly else partly.pop() if len(partly) == 1 else none


def _large(value: Value) -> frozenset[int]:
    return frozenset(d for d, size in enumerate(value.type.shape) if size > 1)
