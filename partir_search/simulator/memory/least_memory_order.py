"""Order of a kernel graph for least memory, by list scheduling.

Each time the kernel runs with the most bytes freed, less bytes taken. XLA's `HloMemoryScheduler`
tries two further orders, both depth-first, and takes the best of three; the list wins for most
programs.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Set

from partir_search.simulator.memory.kernel_graph import KernelGraph


def least_memory_order(
    graph: KernelGraph,
    makers: Mapping[int, int],
    nbytes: Mapping[int, float],
    returned: Set[int],
) -> list[int]:
    """Nodes in an order of little memory.

    Args:
      makers: by id of a value with a buffer, the maker.
      nbytes: by id of a value with a buffer, local bytes.
      returned: ids of values live until the end.
    """
    users = graph.users()
    taken = [0.0] * len(users)
    # Of each buffer: bytes, its readers, and how many of them have not run.
    buffers: list[tuple[float, set[int]]] = []
    left: list[int] = []
    reads: list[list[int]] = [[] for _ in users]

    def add_buffer(maker: int, size: float, readers: set[int], kept: int) -> None:
        taken[maker] += size
        for node in readers:
            reads[node].append(len(buffers))
        buffers.append((size, readers))
        left.append(len(readers) + kept)

    for v, maker in makers.items():
        if nbytes[v]:
            readers = {node for node, _ in graph.reads.get(v, ())} - {maker}
            add_buffer(maker, nbytes[v], readers, v in returned)
    for start, received in graph.received.items():
        add_buffer(start, received.nbytes, set(users[received.end]), 0)

    waiting = [len(earlier) for earlier in graph.waits]
    heap: list[tuple[float, int, int, int]] = []
    latest = [0] * len(users)  # number of the latest entry of each node; 0 before it may run
    order: list[int] = []
    count = 0

    def offer(node: int) -> None:
        nonlocal count
        count += 1
        freed = sum(buffers[b][0] for b in reads[node] if left[b] == 1)
        latest[node] = count
        heapq.heappush(heap, (taken[node] - freed, -len(users[node]), -count, node))

    for node, number in enumerate(waiting):
        if not number:
            offer(node)
    while heap:
        _, _, entry, node = heapq.heappop(heap)
        if latest[node] != -entry:
            continue
        latest[node] = -1
        order.append(node)
        again: set[int] = set()
        for b in reads[node]:
            left[b] -= 1
            if left[b] == 1:
                again.update(other for other in buffers[b][1] if latest[other] > 0)
        for user in users[node]:
            waiting[user] -= 1
            if not waiting[user]:
                offer(user)
        for other in sorted(again):
            offer(other)
    return order
