"""Reductions that some partition may defer: the static side of `defer_reductions`.

A pass of an op is a group of operands through which partial results may go. Values are deferrable
if some op may make them partial and their only user has a pass through them. The sets are the
largest that are consistent: every partition's deferrals are among them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set

from partir_search.ir.analysis.module_analysis import ModuleAnalysis
from partir_search.ir.analysis.reductions import is_zero, joining_scalars
from partir_search.ir.core import Module, Op, Value
from partir_search.ir.rule import DEFERRABLE, OpRule


@dataclasses.dataclass(frozen=True, slots=True)
class Pass:
    """A way of partial results through an op.

    Attributes:
      monoid: "sum", "max" or "min".
      values: ids of the operands that are partial.
      ends: the reduction may be finished at the op's results: these are smaller than the operands,
        or several operands are reduced at once.
    """

    monoid: str
    values: frozenset[int]
    ends: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Deferrals:
    """Values that may be partial at rest, and passes by op id."""

    values: Set[int]
    passes: Mapping[int, Sequence[Pass]]


def find_deferrals(module: Module, rules: Sequence[OpRule], analysis: ModuleAnalysis) -> Deferrals:
    """Deferrals of a module."""
    monoids: dict[int, set[str]] = {}  # by value id: of partial results that it may hold
    passes: dict[int, dict[tuple[str, frozenset[int]], Pass]] = {}
    for op in module.ops:
        if op.regions:
            continue
        rule = rules[op.id]
        made = {m for f, m in enumerate(rule.reducers) if m in DEFERRABLE and rule.sizes[f] > 1}
        for found in _passes(op, rule, analysis, monoids):
            passes.setdefault(op.id, {})[found.monoid, found.values] = found
            made.add(found.monoid)
        for r in op.results:
            if made and analysis.consumer[r.id] >= 0:
                monoids[r.id] = made
    through = {v for each in passes.values() for _, values in each for v in values}
    return Deferrals(through, {i: tuple(each.values()) for i, each in passes.items()})


def _passes(
    op: Op, rule: OpRule, analysis: ModuleAnalysis, monoids: Mapping[int, Set[str]]
) -> list[Pass]:
    """Passes of an op, given the monoids of its partial operands."""
    groups = [("sum", group) for group in rule.linear] + list(rule.monotone)
    found: list[Pass] = []
    for monoid, group in groups:
        operands = [op.operands[i] for i in group]
        open_ones = {
            x.id
            for x in operands
            if isinstance(x, Value)
            and analysis.consumer[x.id] == op.id
            and monoid in monoids.get(x.id, ())
        }
        alone = monoid == "sum"  # operands of a linear group are partial, zeros, or join the sum
        zero = analysis.zeros | joining_scalars(op, frozenset())
        others = [x for x in operands if not (isinstance(x, Value) and x.id in open_ones)]
        if not open_ones or (alone and not all(is_zero(x, zero) for x in others)):
            continue
        made = sum(r.type.nbytes for r in op.results)
        for values in _subsets(open_ones, open_ones - zero if alone else frozenset()):
            before = sum(v.type.nbytes for _, v in op.inputs() if v.id in values)
            if values and made <= before:
                ends = len(values) > 1 or made < before
                found.append(Pass(monoid, values, ends))
    return found


def _subsets(values: Set[int], required: Set[int]) -> list[frozenset[int]]:
    """Sets of values that hold the required ones."""
    found = [frozenset(required)]
    for v in sorted(values - required):
        found += [s | {v} for s in found]
    return found
