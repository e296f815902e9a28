"""Analysis of a module and its rules, shared by all partitions of the module."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from partir_search.ir.analysis.accumulators import added_paths, find_accumulators
from partir_search.ir.analysis.def_use import DefUse, def_use
from partir_search.ir.analysis.ports import ports_of
from partir_search.ir.analysis.reductions import ReductionSite, zero_values
from partir_search.ir.analysis.row_sums import find_row_sums
from partir_search.ir.core import Module
from partir_search.ir.rule import DEFERRABLE, NONE, OpRule

_REDUCERS = frozenset(DEFERRABLE)


class ModuleAnalysis:
    """Facts of a module under its rules.

    Attributes:
      def_use: makers and users of values.
      zeros: ids of values known to be all zeros: they may join any partial sum.
      reducing: (op id, [factors] True where a loop leaves a deferrable reduction) of the ops that
        may make partial results.
      consumer: per value, id of its only user if partial results may pass through the user, or
        NONE.
      ports: operands and results as arrays.
      uses: the operands among them.
      count: per op, number of ops of the program represented.
      always_active: per op id, True if any layout may concern the op: it has regions, windows, a
        blockwise form or a user's shard_map.
      compound: ids of ops with several factors on one dim.
      is_minor: [compound, factor + 1] True for factors with major factors on the same dim.
      accumulators: carries in which partial sums may stay, by id of the op that adds to them.
      row_sums: rows scattered into zeros and added to a carry, by id of the addition.
      widening: ids of ops through which partial results may pass to an accumulator and grow.
      leaving: id of a loop's result by id of its region's result, for sums that may leave the loop
        unfinished.
      growth: cache of `defer_reductions`: bytes added by a reduction after an op, by op, monoid and
        partial operands.
      joining: the keys of `growth` with a finished scalar to join the sum.
    """

    def __init__(self, module: Module, rules: Sequence[OpRule]) -> None:
        """Facts of `module`; `rules` are per op id."""
        self.def_use: DefUse = def_use(module)
        self.zeros = zero_values(module, rules)
        self.accumulators = find_accumulators(module, rules, self.def_use, self.zeros)
        self.row_sums = find_row_sums(self.accumulators, rules, self.def_use, self.zeros)
        paths = added_paths(rules, self.def_use, self.accumulators)
        self.widening, self.leaving = paths.widening, paths.leaving
        self.growth: dict[tuple[int, str, tuple[int, ...]], int | None] = {}
        self.joining: set[tuple[int, str, tuple[int, ...]]] = set()
        self._module, self._rules = module, rules
        self._sites: dict[int, ReductionSite] = {}
        self.consumer = array("i", [NONE]) * len(module.values)
        uses = self.def_use.counts
        # By id of the rule, which many ops share.
        kinds: dict[int, tuple[tuple[bool, ...], bool]] = {}
        reducing: list[tuple[int, tuple[bool, ...]]] = []
        for op, rule in zip(module.ops, rules, strict=True):
            if op.regions:
                continue
            kind = kinds.get(id(rule))
            if kind is None:
                deferrable = tuple([monoid in _REDUCERS for monoid in rule.reducers])
                kind = kinds[id(rule)] = deferrable, bool(rule.linear or rule.monotone)
            deferrable, passes = kind
            if True in deferrable:
                reducing.append((op.id, deferrable))
            if passes:
                for _, v in op.inputs():
                    if uses[v.id] == 1:
                        self.consumer[v.id] = op.id
        self.reducing = tuple(reducing)
        self.ports = ports_of(module, rules)
        self.uses = self.ports.only(~self.ports.result)
        self.count = np.array([op.count for op in module.ops], dtype=np.int64)
        self.always_active = np.array(
            [bool(op.regions or _always(rules[op.id])) for op in module.ops],
            dtype=np.bool_,
        )
        compound = [op.id for op in module.ops if rules[op.id].major_factors]
        self.compound = np.array(compound, dtype=np.int64)
        width = 1 + max((len(rules[i].sizes) for i in compound), default=0)
        self.is_minor = np.zeros((len(compound), width), dtype=np.bool_)
        for k, i in enumerate(compound):
            for f, majors in enumerate(rules[i].major_factors):
                self.is_minor[k, f + 1] = bool(majors)

    def site(self, op_id: int) -> ReductionSite:
        """Reduction site of an op, made on first use: most ops never need one."""
        found = self._sites.get(op_id)
        if found is None:
            op, rule = self._module.ops[op_id], self._rules[op_id]
            single = tuple([v.id for _, v in op.inputs() if self.consumer[v.id] == op_id])
            reduces = not _REDUCERS.isdisjoint(rule.reducers)
            results = tuple([r.id for r in op.results])
            found = self._sites[op_id] = ReductionSite(op, rule, single, results, reduces)
        return found


def _always(rule: OpRule) -> bool:
    """True if an op matters to a program's cost in any layout of its operands."""
    return bool(rule.manual or rule.reads or rule.blockwise)
