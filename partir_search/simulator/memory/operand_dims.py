"""Minor dims of the operands of batched dots.

XLA:TPU reads the matrices of a batched dot from arrays with the dims of the matrices as minor dims,
the larger one innermost, and lays out values for the reading dots: heads of 32 numbers for 49
positions are stored in tiles of 8 x 128, 2.6 times the bytes. A value is laid out for dots if all
readers are batched dots of equal matrices, or elementwise ops and moves (slices of a fused
projection) with results laid out for dots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from partir_search.ir.analysis.def_use import DefUse
from partir_search.ir.core import Module, Op, Value
from partir_search.ir.role import Role
from partir_search.ir.rule import NONE, OpRule
from partir_search.simulator.op_kinds import is_batched

Minors = tuple[tuple[int, int], ...]
"""(dim, elements) of the innermost and the second dim; NONE for a dim that no tiling splits."""


def operand_dims(module: Module, rules: Sequence[OpRule], uses: DefUse) -> Mapping[int, Minors]:
    """By value id, the minor dims of values read by batched dots alone.

    Args:
      rules: per op id.
    """
    found: dict[int, Minors] = {}
    for op in reversed(module.ops):
        if not _has_preference(op, rules[op.id], found):
            continue
        for _, value in op.inputs():
            users = uses.users[value.id]
            if value.id not in found and users[0] is op:
                wanted = _wanted(op, rules[op.id], value, found)
                if wanted is not None and all(
                    _wanted(u, rules[u.id], value, found) == wanted for u in users[1:]
                ):
                    found[value.id] = wanted
    return found


def _has_preference(op: Op, rule: OpRule, found: Mapping[int, Minors]) -> bool:
    """True for a dot, and for an elementwise op with a result laid out for dots."""
    if op.regions:
        return False
    if rule.role is Role.DOT and len(op.operands) == 2:
        return True
    return rule.elementwise and len(op.results) == 1 and op.results[0].id in found


def _wanted(op: Op, rule: OpRule, value: Value, found: Mapping[int, Minors]) -> Minors | None:
    """Minor dims of a value for one of its readers; None if the reader has no preference."""
    if not _has_preference(op, rule, found):
        return None
    place = next(i for i, x in op.inputs() if x is value)
    if rule.role is Role.DOT and len(op.operands) == 2:
        return _of_matrix(rule, place, value.type.shape)
    if op.results[0].type.itemsize > value.type.itemsize:
        return None
    minors = found[op.results[0].id]
    return _translated(rule, minors, rule.operands[place], value.type.shape)


def _of_matrix(rule: OpRule, number: int, shape: Sequence[int]) -> Minors | None:
    dims, other = rule.operands[number], rule.operands[1 - number]
    result = set(rule.results[0])
    shared = set(dims) & set(other)
    large = [d for d, size in enumerate(shape) if size > 1]
    free = [d for d in large if dims[d] not in shared]
    summed = [d for d in large if dims[d] in shared and dims[d] not in result]
    if len(free) != 1 or len(summed) != 1 or not shared & result:
        return None
    lane, sublane = sorted((*free, *summed), key=lambda d: -shape[d])
    return (lane, shape[lane]), (sublane, shape[sublane])


def _translated(
    rule: OpRule, minors: Minors, dims: Sequence[int], shape: Sequence[int]
) -> Minors | None:
    """Minor dims of an op's result as dims of one of its operands."""
    found = []
    for dim, size in minors:
        factors = rule.factors_on(rule.results[0], dim) if dim != NONE else ()
        if dim != NONE and not factors:
            return None
        at = rule.dim_of(tuple(dims), factors[-1]) if factors else NONE
        if dim != NONE and at == NONE:
            return None
        found.append((at if at != NONE and shape[at] == size else NONE, size))
    return tuple(found)


def read_by_plain_dots(
    module: Module, rules: Sequence[OpRule], uses: DefUse, values: Iterable[int]
) -> Iterator[int]:
    """Ids of values read by dots without batch dims alone, directly or moved."""

    def plain(value: Value) -> bool:
        users = uses.users[value.id]
        return bool(users) and value.id not in uses.returned and all(map(reads, users))

    def reads(op: Op) -> bool:
        rule = rules[op.id]
        if rule.elementwise and rule.moves and not op.regions and len(op.results) == 1:
            return plain(op.results[0])
        return rule.role is Role.DOT and not is_batched(rule)

    return (v for v in values if plain(module.values[v]))
