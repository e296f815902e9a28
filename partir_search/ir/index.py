"""What walks over a module need again and again, computed once per module and rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence, Set

from partir_search.ir.core import Literal, Module, Op, Value
from partir_search.ir.rule import OpRule


@dataclasses.dataclass(frozen=True, slots=True)
class Traveller:
    """An op that makes partial sums or may pass them on.

    Attributes:
      single: ids of its operands that nothing else uses.
      sums: whether some factor reduces with "sum".
    """

    op: Op
    rule: OpRule
    single: tuple[int, ...]
    results: tuple[int, ...]
    sums: bool


class Index:
    """Derived facts of a module.

    Attributes:
      zeros: ids of values known to be all zeros: they may join any pending sum.
      travellers: ops that matter to pending sums, in program order.
      around: per op, ids of its operand values and results.
    """

    def __init__(self, module: Module, rules: Sequence[OpRule]) -> None:
        self.zeros = _zeros(module, rules)
        uses = module.use_counts()
        self.around: list[tuple[int, ...]] = []
        self.travellers: list[Traveller] = []
        for op, rule in zip(module.ops, rules, strict=True):
            inputs = tuple(v.id for _, v in op.inputs())
            self.around.append(inputs + tuple(r.id for r in op.results))
            if op.regions:
                continue
            sums = "sum" in rule.reducers
            single = tuple(v for v in inputs if uses[v] == 1) if rule.linear else ()
            if sums or single:
                results = tuple(r.id for r in op.results)
                self.travellers.append(Traveller(op, rule, single, results, sums))


def _zeros(module: Module, rules: Sequence[OpRule]) -> frozenset[int]:
    """Values that are zero because everything that they are linear in is."""
    zeros: set[int] = set()
    for op, rule in zip(module.ops, rules, strict=True):
        if not op.regions and any(
            all(is_zero(op.operands[i], zeros) for i in group) for group in rule.linear
        ):
            zeros.update(r.id for r in op.results)
    return frozenset(zeros)


def is_zero(operand: object, zeros: Set[int]) -> bool:
    """Whether an operand is a literal zero or known to be zero."""
    if isinstance(operand, Literal):
        return operand.is_zero()
    return isinstance(operand, Value) and operand.id in zeros


def linear_group(op: Op, rule: OpRule, pending: Set[int], zeros: Set[int]) -> tuple[int, ...]:
    """The operand positions through which a pending sum may pass `op` now, or ().

    All operands of the group are pending or zero, at least one is pending, no other operand is.
    """
    held = {i for i, v in op.inputs() if v.id in pending}
    for group in rule.linear:
        if (
            held
            and held <= set(group)
            and all(i in held or is_zero(op.operands[i], zeros) for i in group)
        ):
            return group
    return ()
