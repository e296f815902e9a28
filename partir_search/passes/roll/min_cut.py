"""Cheapest set of nodes cutting all paths of a graph from sources to targets."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Hashable, Mapping, Sequence, Set
from typing import TypeVar

N = TypeVar("N", bound=Hashable)

_Port = tuple[object, bool]  # node, True for the side of the node's successors
_SOURCE: _Port = ("source", True)
_TARGET: _Port = ("target", False)
_NEVER = 2**62


def min_node_cut(
    cost: Mapping[N, int], edges: Sequence[tuple[N, N]], sources: Set[N], targets: Set[N]
) -> set[N]:
    """Nodes of the least total cost on every path; of several sets, the one nearest the targets.

    Args:
      cost: of each node, in whole numbers.
      edges: pairs of a node and a successor.
      sources, targets: first and last nodes of the paths; a node may be both.
    """
    left: dict[_Port, dict[_Port, int]] = collections.defaultdict(dict)  # unused capacity

    def add(a: _Port, b: _Port, capacity: int) -> None:
        left[a][b] = left[a].get(b, 0) + capacity
        left[b].setdefault(a, 0)

    for node, capacity in cost.items():
        add((node, False), (node, True), capacity)
    for node, after in edges:
        add((node, True), (after, False), _NEVER)
    for node in sources:
        add(_SOURCE, (node, False), _NEVER)
    for node in targets:
        add((node, True), _TARGET, _NEVER)
    while path := _path(left):
        steps = list(itertools.pairwise(path))
        flow = min(left[a][b] for a, b in steps)
        for a, b in steps:
            left[a][b] -= flow
            left[b][a] += flow
    behind = _reaching(left)
    return {n for n in cost if (n, True) in behind and (n, False) not in behind}


def _path(left: Mapping[_Port, Mapping[_Port, int]]) -> list[_Port]:
    """Shortest path from source to target with unused capacity; [] for none."""
    before: dict[_Port, _Port] = {_SOURCE: _SOURCE}
    todo = collections.deque([_SOURCE])
    while todo and _TARGET not in before:
        a = todo.popleft()
        for b, capacity in left.get(a, {}).items():
            if capacity and b not in before:
                before[b] = a
                todo.append(b)
    if _TARGET not in before:
        return []
    path = [_TARGET]
    while path[-1] != _SOURCE:
        path.append(before[path[-1]])
    return path[::-1]


def _reaching(left: Mapping[_Port, Mapping[_Port, int]]) -> set[_Port]:
    """Ports with unused capacity to the target."""
    into: dict[_Port, list[_Port]] = collections.defaultdict(list)
    for a, found in left.items():
        for b, capacity in found.items():
            if capacity:
                into[b].append(a)
    seen = {_TARGET}
    todo = [_TARGET]
    while todo:
        for a in into[todo.pop()]:
            if a not in seen:
                seen.add(a)
                todo.append(a)
    return seen
