"""Graph of a region's kernels and collectives.

Kernels of one fused kernel are one node, if all operands exist before the first kernel. An
asynchronous gather or permute is two nodes, start and end.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterable, Mapping, Sequence

from partir_search.lowering.local_ir import LocalOp, Reshard, RingReshard, RingTurn
from partir_search.lowering.local_value import LocalValue, Source
from partir_search.lowering.reshard_steps import AllGather, HaloPermute, Permute
from partir_search.simulator.memory.materialize import Materialized
from partir_search.simulator.printing import table
from partir_search.simulator.schedule import ScheduledRegion
from partir_search.simulator.target.traits import XlaTraits
from partir_search.simulator.time.collective_cost import CollectiveCost


class Node(enum.Enum):
    """Kind of a node of a `KernelGraph`."""

    KERNEL = enum.auto()
    COLLECTIVE = enum.auto()  # synchronous
    START = enum.auto()  # of an asynchronous collective
    END = enum.auto()
    BARRIER = enum.auto()  # an optimization barrier


@dataclasses.dataclass(frozen=True, slots=True)
class Received:
    """Copy received by an asynchronous collective: bytes, and the node of the end."""

    nbytes: float
    end: int


@dataclasses.dataclass(eq=False, slots=True)
class KernelGraph:
    """Kernels and collectives of one region on one device, in an order allowed by the program.

    Attributes:
      kind: [nodes] kind of each.
      gathers: [nodes] True for the start or end of a gather. One gather runs at a time.
      seconds: [nodes] duration; of a start, the duration of the collective.
      waits: [nodes] earlier nodes with results read by the node.
      at: by position of a kernel, the node.
      reads: by id of a value, nodes with a read of the value, and positions in the region.
      received: by node of a start.
    """

    kind: list[Node] = dataclasses.field(default_factory=list)
    gathers: list[bool] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)
    waits: list[set[int]] = dataclasses.field(default_factory=list)
    at: dict[int, int] = dataclasses.field(default_factory=dict)
    reads: dict[int, list[tuple[int, int]]] = dataclasses.field(default_factory=dict)
    received: dict[int, Received] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        rows = (
            (k, self.kind[k].name.lower(), self.seconds[k], sorted(self.waits[k]))
            for k in range(len(self.kind))
        )
        return table("KernelGraph", ("node", "kind", "seconds", "waits for"), rows)

    @property
    def runs_asynchronously(self) -> bool:
        """True if a collective of the region is asynchronous."""
        return Node.START in self.kind

    def users(self) -> list[list[int]]:
        """[nodes] later nodes behind each node."""
        found: list[list[int]] = [[] for _ in self.kind]
        for k, earlier in enumerate(self.waits):
            for e in earlier:
                found[e].append(k)
        return found

    def add(self, kind: Node, seconds: float, waits: set[int], *, gathers: bool = False) -> int:
        """Adds a node at the end, and returns the number."""
        self.kind.append(kind)
        self.gathers.append(gathers)
        self.seconds.append(seconds)
        self.waits.append(waits)
        return len(self.kind) - 1


def kernel_graph(
    scheduled: ScheduledRegion,
    stored: Materialized,
    leaders: Mapping[int, int],
    traits: XlaTraits,
) -> KernelGraph:
    """Builds the graph of a scheduled region.

    Args:
      scheduled: region with all instructions and barriers, not the moves alone.
      stored: the region's kernels.
      leaders: by position of a kernel, the position of the first kernel in the fused kernel.
    """
    return _Builder(scheduled, stored, leaders, traits).graph


class _Builder:
    """Accumulator of a graph, over one pass of a region's schedule."""

    def __init__(
        self,
        scheduled: ScheduledRegion,
        stored: Materialized,
        leaders: Mapping[int, int],
        traits: XlaTraits,
    ) -> None:
        self.graph = KernelGraph()
        self._seconds, self._stored, self._leaders = scheduled.seconds, stored, leaders
        self._least = math.inf  # bytes of an asynchronous gather
        if traits.async_all_gather != "never":
            self._least = traits.min_async_gather_bytes
        self._fused: dict[int, int] = {}  # by position of a leader, the latest node of its kernel
        self._made: dict[int, frozenset[int]] = {}  # by id of a local value, the nodes behind it
        self._values: dict[int, frozenset[int]] = {}  # by id of a value: of the latest local value
        for item, at, cost, _ in scheduled.steps:
            order = item.scheduling
            if order.operands_after:
                read = (item.source,) if isinstance(item, Reshard) else item.ins
                self._tie((*order.operands_after, *read))
            if isinstance(item, Reshard):
                assert cost is not None
                for others in (order.barrier, order.after):
                    self._tie((item.source, *(others or ())))
                self._reshard(item, cost, at)
            else:
                self._op(item, at)
            if order.before is not None:
                self._tie((*item.outs, *order.before))

    def _behind(self, sources: Iterable[Source]) -> frozenset[int]:
        """Nodes behind some local values."""
        return _NONE.union(
            *(self._made.get(x.id, _NONE) for x in sources if isinstance(x, LocalValue))
        )

    def _set(self, local: LocalValue, nodes: frozenset[int]) -> None:
        self._made[local.id] = self._values[local.value.id] = nodes

    def _tie(self, sources: Sequence[Source]) -> None:
        """Puts values behind one barrier: later readers of any wait for all."""
        nodes = self._behind(sources)
        if len(sources) > 1 and nodes:
            node = frozenset((self.graph.add(Node.BARRIER, 0.0, set(nodes)),))
            for x in sources:
                if isinstance(x, LocalValue):
                    self._set(x, node)

    def _op(self, item: LocalOp, at: int) -> None:
        waits = self._behind((*item.ins, *item.received))
        if at in self._stored.reads:
            # An op with regions reads more than its operands.
            captured = (self._values.get(v, _NONE) for v in self._stored.reads[at])
            waits = waits.union(*captured) if item.regions else waits
            turns = item.turns if isinstance(item, RingTurn) else 1
            waits = frozenset((self._kernel(at, waits, turns),))
        for out in item.outs:
            self._set(out, waits)

    def _kernel(self, at: int, waits: frozenset[int], turns: int) -> int:
        """Adds a kernel, alone or to the fused kernel of the leader."""
        graph, leader = self.graph, self._leaders.get(at, at)
        seconds, node = float(self._seconds[at]) / turns, self._fused.get(leader)
        if node is not None and max(waits, default=-1) <= node:
            graph.waits[node] |= waits - {node}
            graph.seconds[node] += seconds
        else:
            node = self._fused[leader] = graph.add(Node.KERNEL, seconds, set(waits))
        graph.at[at] = node
        for v in self._stored.reads[at]:
            graph.reads.setdefault(v, []).append((node, at))
        return node

    def _reshard(self, item: Reshard, cost: CollectiveCost, at: int) -> None:
        nodes = self._behind((item.source, *item.received))
        if item.step.communicates:
            nodes = frozenset((self._collective(item, cost, at, nodes),))
        self._set(item.target, nodes)

    def _collective(
        self, item: Reshard, cost: CollectiveCost, at: int, waits: frozenset[int]
    ) -> int:
        """Adds a collective, and returns the node behind the result."""
        graph, size = self.graph, item.target.nbytes * cost.width
        gathers = isinstance(item.step, AllGather)
        early = isinstance(item, RingReshard) or isinstance(item.step, Permute | HaloPermute)
        early |= gathers and size >= self._least
        kind = Node.START if early else Node.COLLECTIVE
        first = last = graph.add(kind, cost.seconds, set(waits), gathers=gathers)
        if early:
            last = graph.add(Node.END, 0.0, {first}, gathers=gathers)
            graph.received[first] = Received(size, last)
        graph.reads.setdefault(item.source.value.id, []).append((first, at))
        return last


_NONE: frozenset[int] = frozenset()
