"""Adjacency of the graph's nodes and classes, as arrays: neighbours of many at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int32]


class Adjacency:
    """Nodes touching classes, and classes touched by nodes."""

    def __init__(self, touching: Sequence[Sequence[int]], classes: Sequence[Sequence[int]]) -> None:
        """Builds the adjacency.

        Args:
          touching: nodes per class.
          classes: classes per node.
        """
        self._touching, self._classes = _Lists(touching), _Lists(classes)

    def nodes(self, classes: Places) -> Places:
        """Nodes with a port on any of the classes, sorted."""
        return self._touching.joined(classes, len(self._classes.counts))

    def classes(self, nodes: Places) -> Places:
        """Classes of any of the nodes, sorted."""
        return self._classes.joined(nodes, len(self._touching.counts))


class _Lists:
    """Lists of numbers, concatenated in one array."""

    def __init__(self, lists: Sequence[Sequence[int]]) -> None:
        self.counts = np.fromiter(map(len, lists), np.int32, len(lists))
        self.ends = self.counts.cumsum(dtype=np.int32)
        total = int(self.counts.sum())
        self.numbers = np.fromiter(itertools.chain.from_iterable(lists), np.int32, total)

    def joined(self, rows: Places, below: int) -> Places:
        """Distinct numbers of the lists `rows`, sorted; every number is less than `below`."""
        counts = self.counts[rows]
        shift = np.repeat(self.ends[rows] - counts.cumsum(dtype=np.int32), counts)
        found = np.zeros(below, dtype=bool)
        found[self.numbers[shift + np.arange(len(shift), dtype=np.int32)]] = True
        return np.flatnonzero(found).astype(np.int32)
