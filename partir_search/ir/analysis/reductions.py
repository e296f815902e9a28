"""Analysis of partial results: makers, and ops that pass partial results on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence, Set

from partir_search.ir.core import Literal, Module, Op, Value
from partir_search.ir.rule import OpRule


@dataclasses.dataclass(frozen=True, slots=True)
class ReductionSite:
    """An op that makes partial results or may pass them on.

    Attributes:
      single: ids of operands used by this op only, once.
      results: ids of the results.
      reduces: a loop over some factor leaves a deferrable reduction.
    """

    op: Op
    rule: OpRule
    single: tuple[int, ...]
    results: tuple[int, ...]
    reduces: bool


def zero_values(module: Module, rules: Sequence[OpRule]) -> frozenset[int]:
    """Ids of values known to be zero: results of ops linear in zeros."""
    return zeros_made(zip(module.ops, rules, strict=True))


def zeros_made(ops: Iterable[tuple[Op, OpRule]]) -> frozenset[int]:
    """Ids of results known to be zero, of ops in order and their rules."""
    zeros: set[int] = set()
    for op, rule in ops:
        if op.regions:
            continue
        for group in rule.linear:
            for i in group:
                if not is_zero(op.operands[i], zeros):
                    break
            else:
                zeros.update(r.id for r in op.results)
    return frozenset(zeros)


def is_zero(operand: object, zeros: Set[int]) -> bool:
    """True if an operand is a literal zero or known to be zero."""
    if isinstance(operand, Value):
        return operand.id in zeros
    return isinstance(operand, Literal) and operand.is_zero()


def joining_scalars(op: Op, partial: Set[int]) -> frozenset[int]:
    """Ids of scalar operands free to join a sum on one device.

    Args:
      partial: ids of the partial operands.
    """
    return frozenset(v.id for _, v in op.inputs() if not v.type.shape and v.id not in partial)


def passing_group(
    op: Op, rule: OpRule, monoid: str, partial: Set[int], zeros: Set[int]
) -> tuple[int, ...]:
    """Operand positions through which a partial result may pass `op` now, or ().

    At least one operand of the group is partial, and none outside of it. For sums, all remaining
    operands of the group are zero.
    """
    positions = {i for i, v in op.inputs() if v.id in partial}
    if monoid != "sum":
        groups = (g for m, g in rule.monotone if m == monoid)
        return next((g for g in groups if positions and positions <= set(g)), ())
    for group in rule.linear:
        if (
            positions
            and positions <= set(group)
            and all(i in positions or is_zero(op.operands[i], zeros) for i in group)
        ):
            return group
    return ()
