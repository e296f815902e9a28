"""Summaries of the regions of a module's ops: memory curves, stored values, and the number of
values that each operand and result of a folded region stands for.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from partir_search.ir.analysis.def_use import DefUse, def_use
from partir_search.ir.core import Op, Region, Value
from partir_search.ir.rule import NONE, OpRule
from partir_search.lowering.local_ir import Reshard
from partir_search.lowering.reshard_steps import Reduction
from partir_search.passes.fold.fold import Folded
from partir_search.passes.fold.linear import KeptOps
from partir_search.simulator.arrays import Ints
from partir_search.simulator.memory.buffers import Buffers
from partir_search.simulator.memory.curve import Curve, live_curve
from partir_search.simulator.printing import table
from partir_search.simulator.target.machine import Machine


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class RegionSummaries:
    """Memory and multiplicities of the regions of a module's ops.

    Attributes:
      curves: by op id, the memory curve of each of the op's regions.
      stored: per region, ids of the stored values.
      instances: by (op id, value id), the number of the original's values behind an operand or
        result of an op with folded regions; by (NONE, value id) behind a result of the region.
      repeats: by id of a result of a region that is not folded, the number of ops of the original
        behind the op with the region, if more than 1.
      summed: by id of a value of a quotient whose only use is a sum over repeats, the number of
        reductions: 1, or 0 for a scalar that joins the sum of another value.
    """

    curves: Mapping[int, Sequence[Curve]]
    stored: Sequence[Ints]
    instances: Mapping[tuple[int, int], int]
    repeats: Mapping[int, int]
    summed: Mapping[int, int]

    def __str__(self) -> str:
        rows = [
            (op, at, len(curve.position), len(curve.changing))
            for op, curves in self.curves.items()
            for at, curve in enumerate(curves)
        ]
        return table("RegionSummaries", ("op id", "region", "rows", "values"), rows)

    def runs(self, reshard: Reshard) -> int:
        """Executions of a reshard per run of its region in the original."""
        value = reshard.source.value
        if isinstance(reshard.step, Reduction) and value.id in self.summed:
            return self.summed[value.id]
        return self.moves(reshard.op, value)

    def moves(self, op: Op | None, value: Value) -> int:
        """Executions of a step other than a reduction, per run of its region in the original.

        Args:
          op: op that reads or makes the value; None for a result of the region.
        """
        usual = op.count if op else self.repeats.get(value.id, 1)
        return self.instances.get((op.id if op else NONE, value.id), usual)

    def instances_in_flight(self, op: Op | None, value: Value) -> int:
        """Number of the original's values behind `value` that are moved at the same time.

        Values that enter or leave a folded region are moved together; all further values are moved
        layer by layer.
        """
        return self.instances.get((op.id if op else NONE, value.id), 1)


def summarize_regions(buffers: Buffers, machine: Machine) -> RegionSummaries:
    """Summarizes the regions of a module without a fold."""
    found = _Builder(machine)
    found.add(buffers)
    return RegionSummaries(found.curves, found.stored, {}, {}, {})


def summarize_folded_regions(
    buffers: Buffers,
    folded: Folded,
    rules: Sequence[OpRule],
    closed: Mapping[int, Sequence[Buffers]],
    machine: Machine,
) -> RegionSummaries:
    """Summarizes the regions of a quotient.

    Args:
      buffers: of the original's body.
      rules: per op id of the quotient.
      closed: by id of a quotient's op whose regions are not folded, the buffers of the regions.
    """
    found = _Builder(machine)
    class_of = np.array(folded.class_of)
    found.add_folded(buffers, folded.module.body, folded, folded.body, closed, class_of)
    summed = _summed(folded, rules, class_of)
    return RegionSummaries(found.curves, found.stored, found.instances, found.repeats, summed)


class _Builder:
    """Accumulator of summaries, over a walk of all regions."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.curves: dict[int, list[Curve]] = {}
        self.stored: list[Ints] = []
        self.instances: dict[tuple[int, int], int] = {}
        self.repeats: dict[int, int] = {}

    def add(self, buffers: Buffers) -> None:
        """Adds all regions inside a region."""
        for at, regions in buffers.inner.items():
            self._add_op(buffers.region.ops[at], regions)

    def add_folded(
        self,
        whole: Buffers,
        region: Region,
        folded: Folded,
        places: KeptOps,
        closed: Mapping[int, Sequence[Buffers]],
        class_of: Ints,
    ) -> None:
        """Adds all regions inside a quotient's region.

        Args:
          whole: buffers of the original's region.
          region: region of the quotient.
          places: ops of the original's region in the quotient.
          class_of: id of the quotient's value for each of the original's, or -1.
        """
        for op, at in zip(region.ops, places.positions, strict=True):
            if at in places.opened:
                pairs = list(zip(whole.inner[at], places.opened[at], strict=True))
                self._count_ends(op)
                for (inside, left), inner in zip(pairs, op.regions, strict=True):
                    values = class_of[inside.ranges.value]
                    self.stored.append(values[values >= 0])
                    self.add_folded(inside, inner, folded, left, closed, class_of)
                self.curves[op.id] = [
                    live_curve(p, self._machine, folded, left, curves_inside(inner, self.curves))
                    for (p, left), inner in zip(pairs, op.regions, strict=True)
                ]
            elif op.regions:
                self._add_op(op, closed[op.id])

    def _add_op(self, op: Op, regions: Sequence[Buffers]) -> None:
        self.stored += [inside.ranges.value for inside in regions]
        for inside in regions:
            self.add(inside)
            results = (x for x in inside.region.results if isinstance(x, Value))
            self.repeats.update((x.id, op.count) for x in results if op.count > 1)
        self.curves[op.id] = [
            live_curve(inside, self._machine, inside=curves_inside(inside.region, self.curves))
            for inside in regions
        ]

    def _count_ends(self, op: Op) -> None:
        """Counts the original's values behind each operand and result of an op."""
        ends = [(op.id, x) for x in (*op.operands, *op.results)]
        ends += [(NONE, x) for r in op.regions for x in r.results]
        for at, x in ends:
            if isinstance(x, Value):
                self.instances[at, x.id] = self.instances.get((at, x.id), 0) + 1


def curves_inside(region: Region, curves: Mapping[int, Sequence[Curve]]) -> list[Curve]:
    """Curves of the regions of a region's ops.

    Args:
      curves: by op id.
    """
    return [curve for op in region.ops for curve in curves.get(op.id, ())]


def _summed(folded: Folded, rules: Sequence[OpRule], class_of: Ints) -> dict[int, int]:
    """Reductions of a quotient's values whose only use is a sum over repeats, by value id.

    An example is each layer's summand of a shared parameter's gradient. The whole program reduces
    the total alone, not the summands (`ir/analysis/deferred_reductions.py`).
    """
    module = folded.module
    uses, found = def_use(module), dict[int, int]()
    for op in reversed(module.ops):
        if op.regions or not rules[op.id].linear:
            continue
        results = {r.id for r in op.results}
        inputs = [v.id for _, v in op.inputs()]
        totals = results & set(inputs) if op.count > 1 else set()
        read_later = all(u is op or u.count == 1 for v in totals for u in uses.users[v])
        if results & found.keys() or (totals and read_later):
            found |= {v: 1 for v in inputs if v not in results and uses.counts[v] == 1}
    return found | _summed_scalars(folded, uses, rules, class_of)


def _summed_scalars(
    folded: Folded, uses: DefUse, rules: Sequence[OpRule], class_of: Ints
) -> dict[int, int]:
    """Reductions of scalars summed together in the whole program (a global norm).

    Running total and summand have one each, and none without a reader in the quotient: one op and
    one summand stand for all of a sum over unlike values.

    Args:
      uses: of the quotient.
    """
    users = def_use(folded.original).users
    members, inside = collections.Counter[int](), collections.Counter[int]()
    for v in folded.original.values:
        q = int(class_of[v.id])
        if v.type.shape or q < 0:
            continue
        members[q] += 1
        made = users[v.id][0].results if len(users[v.id]) == 1 else ()
        total = int(class_of[made[0].id]) if made and not made[0].type.shape else NONE
        maker = uses.makers[total] if total >= 0 else None
        inside[q] += maker is not None and bool(rules[maker.id].linear)
    return {
        q: min(1, uses.counts[q])
        for q, count in inside.items()
        if count and count >= members[q] - 1 and (count > 1 or not uses.counts[q])
    }
