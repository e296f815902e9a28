"""Live memory in the order of XLA's schedulers, in place of the program's order.

XLA:TPU orders a program for little memory (`least_memory_order.py`), and a program with
asynchronous collectives then to hide the collectives (`latency_order.py`), at any price in memory.
The curve of the memory model is of the program's order; the difference of the peaks of both orders,
of the same values and temporaries, is added to the peak.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from partir_search.ir.core import Module
from partir_search.ir.role import Role
from partir_search.lowering.cache import LocalCache
from partir_search.lowering.local_ir import LocalProgram
from partir_search.lowering.localize import localize
from partir_search.lowering.scheduling.schedule import schedule_for
from partir_search.rules.registry import role_of
from partir_search.simulator.arrays import Bools, Floats, Ints
from partir_search.simulator.memory.buffers import Buffers
from partir_search.simulator.memory.curve import large_kernels
from partir_search.simulator.memory.kernel_graph import KernelGraph, kernel_graph
from partir_search.simulator.memory.latency_order import latency_order
from partir_search.simulator.memory.least_memory_order import least_memory_order
from partir_search.simulator.printing import table
from partir_search.simulator.program_analysis import ProgramAnalysis
from partir_search.simulator.schedule import ScheduledRegion, schedule
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.time.collective_cost import CollectiveCosts


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Reordered:
    """Live bytes in the compiler's order.

    Attributes:
      added: bytes of the compiler's peak less bytes of the program's.
      live: [places] live bytes without arguments in the compiler's order.
      position: [places] position in the region of the kernel at each place, -1 for a collective.
      alive: [intervals] True for a live range of `LiveRanges` at the compiler's peak, in main
        memory.
    """

    added: float
    live: Floats
    position: Ints
    alive: Bools

    def __str__(self) -> str:
        head = f"Reordered: {self.added:+.6g} bytes at the peak"
        return table(head, ("", "number"), [("values at the peak", int(self.alive.sum()))])


def reorders(module: Module, machine: Machine) -> bool:
    """True if the compiler's order of a module's kernels is known.

    It is not known with recomputed regions: the compiler orders their kernels with those around.
    """
    recomputes = any(role_of(op) is Role.CHECKPOINT for op in module.body.ops)
    return machine.traits.reorders_kernels and not recomputes


def all_scheduled(
    program: LocalProgram,
    seconds_of: Floats,
    hides_gathers: Bools,
    costs: CollectiveCosts,
    cache: LocalCache | None,
) -> ScheduledRegion:
    """Schedule of a program's body with all instructions and barriers, not the moves alone.

    Args:
      seconds_of / hides_gathers: [ops] as of `schedule`.
      cache: of lowered programs; None for a new one.
    """
    if program.traits is None:
        program = schedule_for(localize(program.partition, cache), costs.machine.traits)
    return schedule(program, seconds_of, hides_gathers, costs)


def reordered(
    scheduled: ScheduledRegion,
    analysis: ProgramAnalysis,
    nbytes: Floats,
    temporaries: Floats,
    machine: Machine,
    *,
    early: bool,
) -> Reordered | None:
    """Live bytes of a module's body in the compiler's order; None for a body without kernels.

    Args:
      scheduled: schedule of all instructions (`all_scheduled`).
      analysis: of the module.
      nbytes: [values] local bytes; 0 for a value computed inside of its readers.
      temporaries: [ops + 2] see `Temporaries.bytes_at`.
      early: True for the curve of early updates.
    """
    buffers, stored = analysis.buffers, analysis.buffers.materialized
    graph = kernel_graph(scheduled, stored, analysis.fusions.leader, machine.traits)
    if not graph.at:
        return None
    places = _Places(graph, buffers, nbytes, temporaries, machine)
    ranges = buffers.ranges
    if graph.runs_asynchronously:
        order = latency_order(graph)
    else:
        returned = frozenset(ranges.value[places.returned].tolist())
        makers = {v: graph.at[at] for v, at in stored.made.items() if v in places.bytes_of}
        order = least_memory_order(graph, makers, places.bytes_of, returned)
    program = list(range(len(graph.kind)))
    before = places.along(program, ranges.early_stop if early else ranges.stop).live
    found = places.along(order, ranges.stop)
    return dataclasses.replace(found, added=float(np.max(found.live) - np.max(before)))


class _Places:
    """Live ranges of a body over the places of kernels and collectives in an order.

    A place is a kernel of the region, or a collective. Kernels of one node keep the program's
    order.
    """

    def __init__(
        self,
        graph: KernelGraph,
        buffers: Buffers,
        nbytes: Floats,
        temporaries: Floats,
        machine: Machine,
    ) -> None:
        ranges, region = buffers.ranges, buffers.region
        self._graph, self._machine = graph, machine
        self._kernels = np.array(sorted(graph.at), dtype=np.int64)
        last = set(graph.at.values())  # not the first turns of a ring
        others = [k for k in range(len(graph.kind)) if k not in last]
        node_of = [graph.at[at] for at in self._kernels.tolist()]
        self._node = np.array([*node_of, *others], dtype=np.int64)
        number = {at: n for n, at in enumerate(self._kernels.tolist())}
        first = len(node_of)
        other = {k: first + n for n, k in enumerate(others)}
        self._ops, self._end = len(region.ops), len(region.ops) - 1
        self._start = np.array([number[at] for at in ranges.start.tolist()], dtype=np.int64)
        # Reads as columns: number of the live range, place, position in the region.
        reads = [
            (i, number[at] if at in number and graph.at[at] == node else other[node], at)
            for i, v in enumerate(ranges.value.tolist())
            for node, at in graph.reads.get(v, ())
        ]
        columns = np.array(reads, dtype=np.int64).reshape(-1, 3)
        self._range, self._reader, self._read_at = columns.T
        self._made_at = ranges.start
        self._bytes = nbytes[ranges.value] * ranges.weight
        large = np.zeros(len(self._node), dtype=np.int64)
        large[[number[at] for at in large_kernels(buffers, machine.traits)]] = 1
        self._large = large
        results = [x.id for x in region.results if hasattr(x, "id")]
        self.returned = np.isin(ranges.value, results)
        most = machine.vmem_bytes * machine.traits.vmem_value_fraction
        self._small = ~self.returned & (nbytes[ranges.value] <= most)
        self.bytes_of: dict[int, float] = {}
        for v, size in zip(ranges.value.tolist(), self._bytes.tolist(), strict=True):
            self.bytes_of[v] = self.bytes_of.get(v, 0.0) + size
        # Temporaries of a position are those of the next kernel.
        held = np.zeros(len(self._kernels) + 1)
        following = np.searchsorted(self._kernels, np.arange(self._ops + 1))
        np.maximum.at(held, following, temporaries[: self._ops + 1])
        self._held, self._before_all = held, float(temporaries[-1])

    def along(self, order: list[int], stop: Ints) -> Reordered:
        """Live bytes in an order.

        Args:
          order: nodes of the graph.
          stop: [intervals] last position of each live range in the program's order.
        """
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        place = np.empty(len(self._node), dtype=np.int64)
        place[np.argsort(rank[self._node], kind="stable")] = np.arange(len(self._node))
        count = len(place)
        start = place[self._start]
        end = self._ends(place, start, stop)
        until = np.cumsum(self._large[np.argsort(place)])
        kernels = until[np.minimum(end, count - 1)] - until[start]
        near = self._small & (kernels <= self._machine.traits.vmem_lifetime_kernels)
        over = np.maximum(self._curve(start, end, near, count) - self._machine.vmem_bytes, 0.0)
        live = self._curve(start, end, ~near, count) + over
        kernel = place[: len(self._kernels)]
        live[kernel] += self._held[:-1]
        live[count] += self._held[-1]
        live[0] += self._before_all
        at = int(np.argmax(live))
        alive = (start <= at) & (end >= at) & (~near | (over[at] > 0.0))
        position = np.full(count + 1, -1)
        position[kernel] = self._kernels
        return Reordered(0.0, live, position, alive)

    def _ends(self, place: Ints, start: Ints, stop: Ints) -> Ints:
        """[intervals] last place of each live range in an order.

        A buffer overwritten by the last reader ends before the reader. A range with an end behind
        all reads ends with the last kernel before the end, or with the region.
        """
        end, last_read, at = start.copy(), self._made_at.copy(), stop[self._range]
        counts = self._read_at <= at + 1
        ends = place[self._reader] - (self._read_at > at)
        np.maximum.at(end, self._range[counts], ends[counts])
        np.maximum.at(last_read, self._range[counts], self._read_at[counts])
        before = np.searchsorted(self._kernels, stop, side="right") - 1
        last = place[: len(self._kernels)][np.maximum(before, 0)]
        last = np.where(stop >= self._end, len(place), last)
        return np.where(stop > last_read, np.maximum(end, last), end)

    def _curve(self, start: Ints, end: Ints, which: Bools, count: int) -> Floats:
        """[places + 1] live bytes of some live ranges."""
        size = self._bytes[which]
        begun = np.bincount(start[which], size, count + 2)
        ended = np.bincount(end[which] + 1, size, count + 2)
        found: Floats = np.cumsum(begun - ended)[: count + 1]
        return found
