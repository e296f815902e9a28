"""Order of a kernel graph by XLA's latency-hiding scheduler.

The scheduler orders a program from the end to the beginning: an end of a collective at once, then
kernels for as long as the collective takes, then the start. Kernels behind the most seconds of
collectives come first. Gradients of weights move towards the updates, with all operands alive.
"""

from __future__ import annotations

import bisect
import heapq
import math

from partir_search.simulator.memory.kernel_graph import KernelGraph, Node

_Rank = tuple[bool, int, int]  # reads an end; how many nodes may run if it has; the node


def latency_order(graph: KernelGraph) -> list[int]:
    """Nodes in the order of the latency-hiding scheduler."""
    return _Scheduler(graph).order()


class _Scheduler:
    """State of the schedule, from the end of the program up to a point in time before."""

    def __init__(self, graph: KernelGraph) -> None:
        self._graph, self._users = graph, graph.users()
        self._now = 0.0  # seconds before the end
        self._unscheduled = [len(each) for each in self._users]
        self._begun = [0.0] * len(self._users)  # seconds before the end at which a node may end
        self._depth = _depths(graph)
        self._reads_end = [any(graph.kind[e] is Node.END for e in w) for w in graph.waits]
        self._gathering = False  # an end of a gather is scheduled, its start is not
        self._gathers_waiting = 0
        self._barriers: list[int] = []
        self._starts: list[int] = []
        self._ends: dict[bool, list[tuple[float, bool, int, int]]] = {True: [], False: []}
        self._kernels: dict[float, _Kernels] = {}  # by depth
        self._depths: list[float] = []
        self._unlocks = [0] * len(self._users)
        self._ready = [False] * len(self._users)
        for node, number in enumerate(self._unscheduled):
            if number == 1:
                self._unlocks[self._users[node][0]] += 1
        for node, number in enumerate(self._unscheduled):
            if not number:
                self._offer(node)

    def order(self) -> list[int]:
        found = []
        for _ in self._users:
            node = self._next()
            found.append(node)
            self._run(node)
        return found[::-1]

    def _rank(self, node: int) -> _Rank:
        return self._reads_end[node], self._unlocks[node], node

    def _offer(self, node: int) -> None:
        """Makes a node available, with all users scheduled."""
        graph, begun = self._graph, self._now
        kind = graph.kind[node]
        if kind is Node.START:
            for user in self._users[node]:
                begun = max(begun, self._begun[user] + graph.seconds[node])
        self._begun[node], self._ready[node] = begun, True
        if kind is Node.BARRIER:
            self._barriers.append(node)
        elif kind is Node.START:
            self._starts.append(node)
        elif kind is Node.END:
            gathers = graph.gathers[node]
            self._gathers_waiting += gathers
            reads, unlocks, number = self._rank(node)
            entry = (-self._depth[node], not reads, -unlocks, -number)
            heapq.heappush(self._ends[gathers], entry)
        else:
            self._insert(node)

    def _insert(self, node: int) -> None:
        depth = self._depth[node]
        if depth not in self._kernels:
            self._kernels[depth] = _Kernels()
            heapq.heappush(self._depths, -depth)
        self._kernels[depth].add(self._length(node), self._rank(node))

    def _remove(self, node: int) -> None:
        depth = self._depth[node]
        if self._kernels[depth].remove(self._length(node), self._rank(node)):
            del self._kernels[depth]
            self._depths.remove(-depth)
            heapq.heapify(self._depths)

    def _length(self, node: int) -> float:
        """Seconds of a node alone."""
        return 0.0 if self._graph.kind[node] is Node.START else self._graph.seconds[node]

    def _next(self) -> int:
        """Takes the best node available."""
        if self._barriers:
            return self._barriers.pop()
        ends = [self._ends[g] for g in (False, True) if not (g and self._gathering)]
        waiting = [heap for heap in ends if heap]
        if waiting:
            heap = min(waiting, key=lambda each: each[0])
            node = -heapq.heappop(heap)[3]
            self._gathers_waiting -= self._graph.gathers[node]
            return node
        kernels = self._kernels[-self._depths[0]] if self._depths else None
        under_way = [self._begun[s] for s in self._starts if self._begun[s] >= self._now]
        node = -1
        if kernels is not None:
            left = min(under_way, default=self._now) - self._now
            node = kernels.nearest(left) if under_way else kernels.best()
        start = max(self._starts, key=self._start_rank, default=-1)
        if start >= 0 and (node < 0 or self._precedes(start, node, bool(under_way))):
            self._starts.remove(start)
            return start
        self._remove(node)
        return node

    def _start_rank(self, node: int) -> tuple[float, bool, bool, float, _Rank]:
        """Rank of a start among starts.

        A start comes after all seconds of the collective, and first if a second gather waits. A
        start behind no collective comes last.
        """
        stall = max(0.0, self._begun[node] - self._now)
        awaited, depth = self._awaited(node), self._depth[node]
        return -stall, awaited or depth > 0.0, awaited, depth, self._rank(node)

    def _awaited(self, start: int) -> bool:
        """True for the start of a gather before the end of a second gather."""
        return self._graph.gathers[start] and self._gathers_waiting > 0

    def _precedes(self, start: int, kernel: int, under_way: bool) -> bool:
        """True if a start is scheduled before a kernel.

        Args:
          under_way: True if seconds of a collective are left.
        """
        if self._begun[start] > self._now:
            return False
        depths = self._depth[start], self._depth[kernel]
        if self._awaited(start) or not depths[0]:
            return self._awaited(start)
        if depths[0] != depths[1] or under_way:
            return depths[0] > depths[1]
        return self._rank(start) > self._rank(kernel)

    def _run(self, node: int) -> None:
        """Schedules a node before all scheduled nodes."""
        graph = self._graph
        begun = self._now
        if graph.kind[node] is Node.START:
            begun = max(begun, self._begun[node])
        self._begun[node], self._ready[node] = begun, False
        self._now = begun + self._length(node)
        if graph.gathers[node] and graph.kind[node] in (Node.START, Node.END):
            self._gathering = graph.kind[node] is Node.END
        for earlier in graph.waits[node]:
            self._unscheduled[earlier] -= 1
            if not self._unscheduled[earlier]:
                self._offer(earlier)
            elif self._unscheduled[earlier] == 1:
                self._unlock(earlier)

    def _unlock(self, node: int) -> None:
        """Notes the last user to schedule before a node."""
        last = next(u for u in self._users[node] if not self._scheduled(u))
        listed = self._ready[last] and self._graph.kind[last] in (Node.KERNEL, Node.COLLECTIVE)
        if listed:
            self._remove(last)
        self._unlocks[last] += 1
        if listed:
            self._insert(last)

    def _scheduled(self, node: int) -> bool:
        return not self._unscheduled[node] and not self._ready[node]


class _Kernels:
    """Kernels available, all of one depth."""

    def __init__(self) -> None:
        self._by_rank: list[_Rank] = []
        self._by_seconds: list[tuple[float, _Rank]] = []

    def add(self, seconds: float, rank: _Rank) -> None:
        bisect.insort(self._by_rank, rank)
        bisect.insort(self._by_seconds, (seconds, rank))

    def remove(self, seconds: float, rank: _Rank) -> bool:
        """Removes a kernel; True if none is left."""
        del self._by_rank[bisect.bisect_left(self._by_rank, rank)]
        del self._by_seconds[bisect.bisect_left(self._by_seconds, (seconds, rank))]
        return not self._by_rank

    def best(self) -> int:
        """The kernel of the highest rank."""
        return self._by_rank[-1][-1]

    def nearest(self, seconds: float) -> int:
        """The kernel whose duration is nearest to some seconds."""
        longer = self._first_above(seconds)
        found = [self._by_seconds[longer - 1]] if longer else []
        if longer < len(self._by_seconds):  # the highest rank of the next longer
            last = self._first_above(self._by_seconds[longer][0]) - 1
            found.append(self._by_seconds[last])
        _, rank = max(found, key=lambda each: (-abs(each[0] - seconds), each[1]))
        return rank[-1]

    def _first_above(self, seconds: float) -> int:
        """Place of the first kernel above some seconds."""
        above = math.nextafter(seconds, math.inf)
        return bisect.bisect_left(self._by_seconds, above, key=lambda each: each[0])


def _depths(graph: KernelGraph) -> list[float]:
    """[nodes] most seconds of asynchronous collectives on a path to each node."""
    found: list[float] = []
    for node, earlier in enumerate(graph.waits):
        most = max((found[e] for e in earlier), default=0.0)
        if graph.kind[node] is Node.END:
            most = max(found[e] + graph.seconds[e] for e in earlier)
        found.append(most)
    return found
