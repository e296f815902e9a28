"""Reductions that some partition may defer: the static side of `defer_reductions`.

A pass of an op is a group of operands through which partial results may go. Values are deferrable
if some op may make them partial and their only user has a pass through them. The sets are the
largest that are consistent: every partition's deferrals are among them.
"""

from __future__ import annotations

import dataclasses
import math
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


def find_deferrals(
    module: Module, rules: Sequence[OpRule], analysis: ModuleAnalysis, most: float = math.inf
) -> Deferrals:
    """Deferrals of a module.

    Args:
      most: limit of the passes of an op through one group of operands.

    Raises:
      ValueError: an op has more passes than allowed.
    """
    monoids: dict[int, set[str]] = {}  # by value id: of partial results that it may hold
    passes: dict[int, dict[tuple[str, frozenset[int]], Pass]] = {}
    for op in module.ops:
        if op.regions:
            continue
        rule = rules[op.id]
        made = {m for f, m in enumerate(rule.reducers) if m in DEFERRABLE and rule.sizes[f] > 1}
        for found in _passes(op, rule, analysis, monoids, most):
            passes.setdefault(op.id, {})[found.monoid, found.values] = found
            made.add(found.monoid)
        for r in op.results:
            if made and analysis.consumer[r.id] >= 0:
                monoids[r.id] = made
    through = {v for each in passes.values() for _, values in each for v in values}
    return Deferrals(through, {i: tuple(each.values()) for i, each in passes.items()})


def _passes(
    op: Op,
    rule: OpRule,
    analysis: ModuleAnalysis,
    monoids: Mapping[int, Set[str]],
    most: float,
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
        sizes = {v.id: v.type.nbytes for _, v in op.inputs() if v.id in open_ones}
        required = open_ones - zero if alone else frozenset()
        for values, before in _sets(sizes, required, made, most):
            ends = len(values) > 1 or made < before
            found.append(Pass(monoid, values, ends))
    return found


def _sets(
    sizes: Mapping[int, int], required: Set[int], least: int, most: float
) -> list[tuple[frozenset[int], int]]:
    """Nonempty sets of values that hold the required ones and are not smaller than the results.

    A stack of n scalars has one such set, of the 2**n that its operands have.

    Args:
      sizes: bytes by id.
      required: ids in each set.
      least: bytes of the results.
      most: limit of the sets.

    Returns:
      Sets of ids, and the bytes of each.

    Raises:
      ValueError: there are more sets than allowed.
    """
    found = [(frozenset(required), sum(sizes[v] for v in required))]
    free = sorted(sizes.keys() - required)
    left = sum(sizes[v] for v in free)
    for v in free:
        left -= sizes[v]
        found += [(values | {v}, size + sizes[v]) for values, size in found]
        found = [(values, size) for values, size in found if size + left >= least]
        if len(found) > most:
            raise ValueError(f"more than {most} ways of partial results through one op")
    return [each for each in found if each[0] and each[1] >= least]
