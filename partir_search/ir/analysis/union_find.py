"""Disjoint sets of ids, by union-find."""

from __future__ import annotations

from array import array


class UnionFind:
    """Disjoint sets of the ids below `count`; the smallest id of a set is its root."""

    def __init__(self, count: int) -> None:
        self._parent = array("i", range(count))

    def find(self, x: int) -> int:
        """Root of the set of `x`."""
        parent = self._parent
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    def merge(self, x: int, y: int) -> bool:
        """Merges the sets of `x` and `y`; False if they are one already."""
        x, y = self.find(x), self.find(y)
        if x == y:
            return False
        self._parent[max(x, y)] = min(x, y)
        return True
