"""Kernels and collectives of a region as a graph: what each of them waits for.

Kernels of one fused kernel are one node, if all of its operands exist before the first of them. A
gather or permute that runs asynchronously is two nodes, its start and its end.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence

from partir_search.ir.analysis.def_use import DefUse
from partir_search.ir.core import Op
from partir_search.lowering.local_ir import LocalOp, Reshard, RingReshard, RingTurn
from partir_search.lowering.local_value import LocalValue, Source
from partir_search.lowering.reshard_steps import AllGather, HaloPermute, Permute
from partir_search.simulator.memory.materialize import Materialized
from partir_search.simulator.printing import table
from partir_search.simulator.schedule import ScheduledRegion
from partir_search.simulator.time.collective_cost import CollectiveCost

MIN_ASYNC_GATHER_BYTES = 16_384  # gathers of fewer bytes (biases) are combined and synchronous


class Node(enum.Enum):
    """What a node of a `KernelGraph` is."""

    KERNEL = enum.auto()
    COLLECTIVE = enum.auto()  # synchronous
    START = enum.auto()  # of an asynchronous collective
    END = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class Received:
    """Copy received by an asynchronous collective: its bytes, and the node of the end."""

    nbytes: float
    end: int


@dataclasses.dataclass(eq=False, slots=True)
class KernelGraph:
    """Kernels and collectives of one region on one device, in an order that the program allows.

    Attributes:
      kind: [nodes] what each node is.
      gathers: [nodes] True for the start or end of a gather, of which one runs at a time.
      seconds: [nodes] duration; of a start, the time that the collective is under way.
      waits: [nodes] earlier nodes that make what the node reads.
      at: by position of a kernel, the node.
      reads: by id of a value, nodes that read the value and their positions in the region.
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
        """[nodes] later nodes that wait for each node."""
        found: list[list[int]] = [[] for _ in self.kind]
        for k, earlier in enumerate(self.waits):
            for e in earlier:
                found[e].append(k)
        return found

    def add(self, kind: Node, seconds: float, waits: set[int], *, gathers: bool = False) -> int:
        """Adds a node after all others, and returns its number."""
        self.kind.append(kind)
        self.gathers.append(gathers)
        self.seconds.append(seconds)
        self.waits.append(waits)
        return len(self.kind) - 1


def kernel_graph(
    scheduled: ScheduledRegion,
    stored: Materialized,
    leaders: Mapping[int, int],
    uses: DefUse,
    elementwise: Sequence[bool],
    *,
    early_gathers: bool,
) -> KernelGraph:
    """Builds the graph of a scheduled region, of all of its ops or of the moves alone.

    Args:
      stored: the region's kernels.
      leaders: by position of a kernel, that of the first kernel fused with it.
      uses: def-use analysis of the module.
      elementwise: [ops] True for an elementwise op.
      early_gathers: True on a target with asynchronous all_gathers.
    """
    return _Builder(scheduled, stored, leaders, uses, elementwise, early_gathers).graph


class _Builder:
    """Accumulator of a graph, over one pass of a region's schedule."""

    def __init__(
        self,
        scheduled: ScheduledRegion,
        stored: Materialized,
        leaders: Mapping[int, int],
        uses: DefUse,
        elementwise: Sequence[bool],
        early_gathers: bool,
    ) -> None:
        self.graph = KernelGraph()
        self._scheduled, self._stored, self._leaders = scheduled, stored, leaders
        self._uses, self._elementwise, self._early_gathers = uses, elementwise, early_gathers
        self._fused: dict[int, int] = {}  # by position of a leader, the latest node of its kernel
        # Nodes behind a value at home, by the value's id, and behind a copy, by the copy's.
        self._home: dict[int, frozenset[int]] = {}
        self._copies: dict[int, frozenset[int]] = {}
        ops = scheduled.region.ops
        given = {item.op.id for item, *_ in scheduled.steps if isinstance(item, LocalOp)}
        following = 0
        for item, at, cost, _ in scheduled.steps:
            if isinstance(item, Reshard):
                until = at
                if item.op is not None:
                    made = any(r is item.source.value for r in item.op.results)
                    until = int(uses.position[item.op.id]) + made
            else:
                until = at
            for position in range(following, min(until, len(ops))):
                if ops[position].id not in given:
                    self._plain(ops[position], position)
            following = max(following, until)
            if isinstance(item, Reshard):
                assert cost is not None
                self._reshard(item, cost, at)
            else:
                self._op(item, at)
        for position in range(following, len(ops)):
            if ops[position].id not in given:
                self._plain(ops[position], position)

    def _behind(self, sources: Iterable[Source]) -> frozenset[int]:
        """Nodes that make some local values."""
        sets = []
        for x in sources:
            if isinstance(x, LocalValue):
                nodes = self._copies.get(x.id)
                sets.append(self._home.get(x.value.id, _NONE) if nodes is None else nodes)
        return _NONE.union(*sets)

    def _plain(self, op: Op, at: int) -> None:
        """Adds an op with all operands and results at home."""
        homes = (self._home.get(v.id, _NONE) for _, v in op.inputs())
        nodes = self._made(at, _NONE.union(*homes), 1)
        for r in op.results:
            self._home[r.id] = nodes

    def _op(self, item: LocalOp, at: int) -> None:
        turns = item.turns if isinstance(item, RingTurn) else 1
        nodes = self._made(at, self._behind((*item.ins, *item.received)), turns)
        for out in item.outs:
            self._copies[out.id] = self._home[out.value.id] = nodes

    def _made(self, at: int, waits: frozenset[int], turns: int) -> frozenset[int]:
        """Nodes behind the results of an op: its kernel, or those behind its operands."""
        if at not in self._stored.reads:
            return waits
        graph, leader = self.graph, self._leaders.get(at, at)
        captured = (self._home.get(v, _NONE) for v in self._stored.reads[at])
        waits = waits.union(*captured)  # of an op's regions; nodes behind operands otherwise
        seconds, node = float(self._scheduled.seconds[at]) / turns, self._fused.get(leader)
        if node is not None and max(waits, default=-1) <= node:
            graph.waits[node] |= waits - {node}
            graph.seconds[node] += seconds
        else:
            node = self._fused[leader] = graph.add(Node.KERNEL, seconds, set(waits))
        graph.at[at] = node
        for v in self._stored.reads[at]:
            graph.reads.setdefault(v, []).append((node, at))
        return frozenset((node,))

    def _reshard(self, item: Reshard, cost: CollectiveCost, at: int) -> None:
        nodes = self._behind((item.source, *item.received))
        if item.regather:
            nodes = nodes.union(self._companion(item))
        if item.step.communicates:
            nodes = frozenset((self._collective(item, cost, at, nodes),))
        self._copies[item.target.id] = nodes
        if item.to_home:
            self._home[item.target.value.id] = nodes

    def _companion(self, regather: Reshard) -> frozenset[int]:
        """Nodes behind the operand that a regather awaits, see `lowering/scheduling/cse.py`."""
        for _, v in regather.op.inputs() if regather.op else ():
            if v is regather.source.value or not v.type.shape or v.id not in self._home:
                continue
            maker = self._uses.makers[v.id]
            fused = maker is not None and self._elementwise[maker.id]
            return _NONE if fused else self._home[v.id]
        return _NONE

    def _collective(
        self, item: Reshard, cost: CollectiveCost, at: int, waits: frozenset[int]
    ) -> int:
        """Adds a collective, and returns the node at which its result exists."""
        graph, size = self.graph, item.target.nbytes * cost.width
        gathers = isinstance(item.step, AllGather)
        early = isinstance(item, RingReshard) or isinstance(item.step, Permute | HaloPermute)
        early |= gathers and self._early_gathers and size >= MIN_ASYNC_GATHER_BYTES
        kind = Node.START if early else Node.COLLECTIVE
        first = last = graph.add(kind, cost.seconds, set(waits), gathers=gathers)
        if early:
            last = graph.add(Node.END, 0.0, {first}, gathers=gathers)
            graph.received[first] = Received(size, last)
        graph.reads.setdefault(item.source.value.id, []).append((first, at))
        return last


_NONE: frozenset[int] = frozenset()
