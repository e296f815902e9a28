"""Maximum matchings of bipartite graphs, by augmenting paths."""

from __future__ import annotations

import collections
from collections.abc import Iterable

Edge = tuple[int, int]


def maximum_matching(edges: Iterable[Edge]) -> list[Edge]:
    """Most edges (source, target) with no source or target in common, in order of sources.

    Each source takes a free target, or the target of a source that can change to another one (Kuhn
    1955, The Hungarian method). Time is at most the number of sources times the number of edges.
    """
    targets: dict[int, list[int]] = collections.defaultdict(list)
    for source, target in sorted(edges):
        targets[source].append(target)
    source_of: dict[int, int] = {}
    target_of: dict[int, int] = {}
    for first in targets:
        reached_from: dict[int, int] = {}  # source by target
        waiting, end = [first], None
        while waiting and end is None:
            source = waiting.pop()
            for target in targets[source]:
                if target in reached_from:
                    continue
                reached_from[target] = source
                if target not in source_of:
                    end = target
                    break
                waiting.append(source_of[target])
        while end is not None:
            source = reached_from[end]
            before = target_of.get(source)
            source_of[end], target_of[source] = source, end
            end = before
    return sorted(target_of.items())
