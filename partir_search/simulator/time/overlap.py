"""Overlap of collectives with compute: exposed seconds, and bytes that devices send.

- A synchronous collective is exposed in full.
- An asynchronous all_gather (`XlaTraits.async_all_gather`) overlaps with the compute since its
  source was made; a gather of an argument, since the start of the region
  (`time/early_gathers.py`). Compute of dots alone counts with
  `XlaTraits.hides_gathers_behind_dots_alone`.
- The permutes of a ring overlap with the compute of one turn.
- With `XlaTraits.defers_weight_gradients` all further collectives overlap with dots off the
  critical path (`time/latency_hiding.py`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from partir_search.ir.core import Op, Region
from partir_search.ir.partition import Partition
from partir_search.ir.rule import NONE
from partir_search.lowering.local_ir import (
    AttentionTurn,
    LocalOp,
    MatmulTurn,
    Reshard,
    RingReshard,
    RingTurn,
)
from partir_search.lowering.reshard_steps import AllGather, Reduction
from partir_search.passes.fold.run_order import RunOrder
from partir_search.simulator.arrays import Bools, Floats, Ints
from partir_search.simulator.memory.region_summaries import RegionSummaries
from partir_search.simulator.op_kinds import op_flops
from partir_search.simulator.printing import table
from partir_search.simulator.program_facts import ProgramFacts
from partir_search.simulator.schedule import ScheduledRegion
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.time.collective_cost import CollectiveCost, CollectiveCosts
from partir_search.simulator.time.early_gathers import EarlyGather, EarlyGathers
from partir_search.simulator.time.latency_hiding import InFlightCollective, OverlapWindow
from partir_search.simulator.time.permutes import Sent, permute_seconds


@dataclasses.dataclass(frozen=True, slots=True)
class CollectiveRecord:
    """Collective of a program: seconds of all runs, and the exposed seconds."""

    kind: str
    axes: str
    seconds: float
    exposed: float
    source: str
    scope: str = ""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Overlap:
    """Collectives of a device-local program beside its compute.

    Attributes:
      exposed: seconds of collectives that no compute hides.
      copied: bytes read and written for copies (`CollectiveCost.copied`) and by turns of rings.
      skipped_seconds / skipped_flops: compute of attention blocks that are masked in full.
      partial: by value id, local bytes of partial sums that a collective reduces.
      by_axis / by_kind: bytes that a device sends, by axes and by kind of collective.
      records: by `id()` of the body's instruction, its collectives; empty unless recorded.
    """

    exposed: float
    copied: float
    skipped_seconds: float
    skipped_flops: float
    partial: Mapping[int, int]
    by_axis: Mapping[str, float]
    by_kind: Mapping[str, float]
    records: Mapping[int, Sequence[CollectiveRecord]]

    def __str__(self) -> str:
        rows: list[tuple[object, ...]] = [
            (r.kind, r.axes, r.seconds, r.exposed) for each in self.records.values() for r in each
        ]
        rows += [(kind, "all axes", f"{sent:.6g} bytes", "") for kind, sent in self.by_kind.items()]
        head = f"Overlap: {self.exposed:.6g} s exposed, {self.copied:.6g} bytes copied"
        return table(head, ("collective", "axes", "seconds or bytes", "exposed, s"), rows)


def overlap(
    scheduled: ScheduledRegion,
    partition: Partition,
    seconds_of: Floats,
    costs: CollectiveCosts,
    regions: RegionSummaries,
    deferred_runs: Floats,
    orders: Mapping[Region, RunOrder],
    *,
    record: bool = False,
) -> Overlap:
    """Computes the overlap of a scheduled program.

    Args:
      seconds_of: [ops] seconds of one run of each op.
      deferred_runs: [ops] result of `deferred_runs`.
      orders: by region, the order in which the original runs the ops.
      record: True to record every collective, which is slow: the source line of each op is found.
    """
    found = _Builder(partition, seconds_of, costs, regions, deferred_runs, orders, record)
    found.region(scheduled, 1.0)
    return Overlap(
        exposed=found.exposed,
        copied=found.copied,
        skipped_seconds=found.skipped_seconds,
        skipped_flops=found.skipped_flops,
        partial=found.partial,
        by_axis=found.by_axis,
        by_kind=found.by_kind,
        records=found.records,
    )


def hides_gathers(facts: ProgramFacts, machine: Machine) -> Bools:
    """[ops] True for an op whose kernel an asynchronous all_gather may run beside."""
    if machine.traits.hides_gathers_behind_dots_alone:
        return np.array(facts.contracts, dtype=np.bool_)
    return np.ones(len(facts.module.ops), dtype=np.bool_)


def deferred_runs(facts: ProgramFacts, leaders: Mapping[int, int], machine: Machine) -> Floats:
    """[ops] runs per step of dots off the critical path; 0 on targets that defer no dots.

    The runs of a dot are at the op that leads the dot's kernel, as the kernel's seconds are.

    Args:
      leaders: by id of an op with a kernel, the op that leads the kernel.
    """
    found = np.zeros(len(facts.module.ops))
    if not machine.traits.defers_weight_gradients:
        return found
    for op_id, leader in leaders.items():
        op, late = facts.module.ops[op_id], facts.off_critical_path
        if facts.contracts[op_id] and all(r.id in late for r in op.results):
            found[leader] = op.count
    return found


class _Builder:
    """Accumulator of a program's overlap, over one pass of its schedule."""

    def __init__(
        self,
        partition: Partition,
        seconds_of: Floats,
        costs: CollectiveCosts,
        regions: RegionSummaries,
        deferred: Floats,
        orders: Mapping[Region, RunOrder],
        record: bool,
    ) -> None:
        self._partition, self._mesh, self._def_use = partition, partition.mesh, partition.def_use
        self._seconds_of, self._deferred = seconds_of, deferred
        self._costs, self._facts, self._machine = costs, costs.facts, costs.machine
        self._regions, self._orders, self._record = regions, orders, record
        self._passing: list[Sent] = []  # permutes that run beside turns of a ring
        self._worked = 0.0  # seconds of compute of these turns
        self._window = OverlapWindow()  # of the current region
        self._gathers: _Gathers | None = None  # of the current region
        self._at = -1  # `id()` of the body's current instruction
        self._depth = 0
        self.exposed = self.copied = self.skipped_seconds = self.skipped_flops = 0.0
        self.partial: dict[int, int] = {}
        self.by_axis: dict[str, float] = {}
        self.by_kind: dict[str, float] = {}
        self.records: dict[int, list[CollectiveRecord]] = {}

    def record(
        self,
        kind: str,
        axes: str,
        seconds: float,
        exposed: float,
        source: str | Op | None,
        at: int | None = None,
    ) -> None:
        """Records a collective, if `record` was asked for."""
        if self._record:
            scope = source.scope if isinstance(source, Op) else ""
            line = source.source if isinstance(source, Op) else source or ""
            found = CollectiveRecord(kind, axes, seconds, exposed, line, scope)
            self.records.setdefault(self._at if at is None else at, []).append(found)

    def region(self, scheduled: ScheduledRegion, times: float) -> None:
        """Adds a region with `times` runs."""
        members = scheduled.members
        freed, last = self._freed(members, scheduled.seconds, times)
        outer, self._window = self._window, OverlapWindow()
        outside, self._gathers = self._gathers, None
        seen = 0  # position up to which deferred dots have run
        for number, (item, at, cost, argument) in enumerate(scheduled.steps):
            if self._record and not self._depth:
                self._at = id(item)
            if at != seen and freed:
                self._window.work(freed[at] - freed[seen])
                if at > last:
                    self._window.end()
            seen = at
            if isinstance(item, Reshard):
                assert cost is not None
                if isinstance(item, RingReshard):
                    self._pass_on(item, cost, times * item.op.count)
                    continue
                count = times * self._regions.runs(item)
                self._reshard(item, cost, count, scheduled, at, argument)
                continue
            if isinstance(item, RingTurn):
                share = item.share if isinstance(item, AttentionTurn) else 1.0
                seconds = float(self._seconds_of[item.op.id]) / item.turns
                self._worked += share * seconds
                self._skip(item, (1.0 - share) / item.turns, times)
                if not item.last:
                    continue
                self._arrive(times * item.op.count)
                if isinstance(item, MatmulTurn):
                    self.copied += self._collective_matmul_copies(item) * times * item.op.count
            if item.regions:
                self._depth += 1
                for inside, n in scheduled.inner[number]:
                    if inside is not None:
                        self.region(inside, times * n)
                self._depth -= 1
            elif item.op.id in self._facts.manual:
                for own in self._facts.manual[item.op.id]:
                    seconds, sent, name = self._costs.of_own(own)
                    self._add(own.kind, name, sent, times * own.times * item.op.count)
                    taken = seconds * times * own.times * item.op.count
                    self.exposed += taken
                    self.record(own.kind, name, taken, taken, item.op)
        if freed:
            self._window.work(freed[len(members)] - freed[seen])
            self._window.end()
        for each in self._window.begun:
            self.exposed += each.exposed
            self.record(each.kind, each.axes, each.seconds, each.exposed, each.op, each.at)
        self._window = outer
        if self._gathers is not None:
            self._end_gathers(self._gathers)
        self._gathers = outside

    def _freed(self, members: Ints, seconds: Floats, times: float) -> tuple[list[float], int]:
        """Seconds of deferred dots before each op of a region, and the position after the last one.

        The list is empty for a region without deferred dots.
        """
        if not self._machine.traits.defers_weight_gradients:
            return [], 0
        free = self._deferred[members]
        if not free.any():
            return [], 0
        sums = np.concatenate(([0.0], np.cumsum(seconds * free * times)))
        return sums.tolist(), int(np.flatnonzero(free)[-1]) + 1

    def _skip(self, item: LocalOp, share: float, times: float) -> None:
        """Subtracts a share of an op's compute."""
        if share:
            share *= times * item.op.count
            self.skipped_seconds += share * float(self._seconds_of[item.op.id])
            p, rule = self._partition, self._partition.rules[item.op.id]
            tiles = math.prod(p.tiles_of(item.op, f) for f in range(len(rule.sizes)))
            self.skipped_flops += share * op_flops(item.op, rule) / tiles

    def _collective_matmul_copies(self, item: MatmulTurn) -> float:
        """Bytes that the turns of a collective matmul move beyond the bytes of one dot."""
        (out,) = item.outs
        if item.assembles(self._partition.rules[item.op.id]):
            return float(out.nbytes)  # no epilogue is fused into the dots
        if item.passes_results:
            return float(out.nbytes * (item.turns - 1))  # each turn reads the partial sum received
        return 2.0 * out.nbytes * (item.turns - 1)  # each turn reads and writes the partial sum

    def _add(self, kind: str, axes: str, sent: float, times: float) -> None:
        """Adds the bytes sent by a collective with `times` runs."""
        self.by_axis[axes] = self.by_axis.get(axes, 0.0) + sent * times
        self.by_kind[kind] = self.by_kind.get(kind, 0.0) + sent * times

    def _pass_on(self, reshard: RingReshard, cost: CollectiveCost, times: float) -> None:
        """Adds a permute of a ring, which runs beside a turn's compute."""
        if self._worked:
            self._arrive(times)
        self._add(reshard.step.kind, cost.axes, cost.sent, times)
        payload = reshard.payload_bytes * cost.width
        self._passing.append((reshard.step.pairs, reshard.step.axes, payload))

    def _arrive(self, times: float) -> None:
        """Ends the permutes in flight: seconds beyond the compute of the turns are exposed."""
        taken = permute_seconds(self._passing, self._mesh, self._machine)
        exposed = max(0.0, taken - self._worked)
        self.exposed += exposed * times
        if taken:
            axes = dict.fromkeys(
                self._mesh.names[a] for _, along, _ in self._passing for a in along
            )
            names = ",".join(axes)
            self.record(
                "collective_permute", names, taken * times, exposed * times, "a ring's turn"
            )
        self._passing, self._worked = [], 0.0

    def _reshard(
        self,
        reshard: Reshard,
        cost: CollectiveCost,
        times: float,
        scheduled: ScheduledRegion,
        at: int,
        argument: bool,
    ) -> None:
        """Adds the seconds and bytes of a collective after the compute before position `at`.

        Args:
          argument: True if the reshard's source is an argument of the region.
        """
        kind, traits = reshard.step.kind, self._machine.traits
        self.copied += cost.copied * times
        if not reshard.step.communicates:
            return
        seconds = cost.seconds
        self._add(kind, cost.axes, cost.sent, times)
        if isinstance(reshard.step, Reduction):
            self.partial.setdefault(reshard.source.value.id, reshard.source.nbytes)
        start = traits.async_all_gather
        if isinstance(reshard.step, AllGather) and (
            start == "since_source" or (argument and start == "arguments")
        ):
            self._begin_gather(reshard, cost, times, scheduled, at, argument)
            return
        if traits.defers_weight_gradients:
            total, op = seconds * times, reshard.op
            deferrable = reshard.source.value.id in self._facts.off_critical_path
            layers = op.count if op and op.backward else 1
            found = InFlightCollective(kind, cost.axes, total, total, op, self._at)
            self._window.begin(found, deferrable=deferrable, layers=layers)
            return
        exposed = seconds * times
        self.exposed += exposed
        if self._record:
            self.record(kind, cost.axes, seconds * times, exposed, reshard.op)

    def _begin_gather(
        self,
        reshard: Reshard,
        cost: CollectiveCost,
        times: float,
        scheduled: ScheduledRegion,
        at: int,
        argument: bool,
    ) -> None:
        """Begins an asynchronous gather, as early as its source is made."""
        if self._gathers is None:
            order = self._orders[scheduled.region]
            early = EarlyGathers(scheduled.beside_gathers, order)
            self._gathers = _Gathers(early, order.outside, [])
        gathers, members, op = self._gathers, scheduled.members, reshard.op
        user = int(self._def_use.position[op.id]) if op else NONE
        start: int | None = None  # of the ops, that which makes the source
        made = self._facts.def_use.maker_ids[reshard.source.value.id]
        if not argument and made != NONE:
            first = int(self._def_use.position[made])
            here = first < len(members) and members[first] == made
            start = first if here else NONE
        repeats = self._regions.runs(reshard) / gathers.outside
        found = gathers.early.begin(at, user, cost.seconds, start, repeats)
        gathers.begun.append((found, reshard, cost, times, self._at))

    def _end_gathers(self, gathers: _Gathers) -> None:
        """Adds the exposed seconds of a region's gathers."""
        gathers.early.end()
        for gather, reshard, cost, times, at in gathers.begun:
            exposed = gather.exposed * times
            self.exposed += exposed
            if self._record:
                total = cost.seconds * times
                self.record(reshard.step.kind, cost.axes, total, exposed, reshard.op, at)


@dataclasses.dataclass(slots=True)
class _Gathers:
    """Asynchronous gathers of a region.

    Attributes:
      outside: number of the original's regions behind the region.
      begun: each with its reshard, cost, executions, and key of the record.
    """

    early: EarlyGathers
    outside: int
    begun: list[tuple[EarlyGather, Reshard, CollectiveCost, float, int]]
