"""Nodes and classes that propagation looks at, found for many decided classes at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int32]


class Reach:
    """Nodes on classes, and the classes of these nodes."""

    def __init__(self, touching: Sequence[Sequence[int]], classes: Sequence[Sequence[int]]) -> None:
        """`touching`: nodes per class; `classes`: classes per node."""
        self._touching, self._classes = _Lists(touching), _Lists(classes)

    def nodes(self, classes: Places) -> Places:
        """The nodes with a port on any of the classes, sorted."""
        return self._touching.joined(classes, len(self._classes.counts))

    def classes(self, nodes: Places) -> Places:
        """The classes of any of the nodes, sorted."""
        return self._classes.joined(nodes, len(self._touching.counts))


class _Lists:
    """Lists of numbers, end to end."""

    def __init__(self, lists: Sequence[Sequence[int]]) -> None:
        self.counts = np.fromiter(map(len, lists), np.int32, len(lists))
        self.ends = self.counts.cumsum(dtype=np.int32)
        total = int(self.counts.sum())
        self.numbers = np.fromiter(itertools.chain.from_iterable(lists), np.int32, total)

    def joined(self, rows: Places, below: int) -> Places:
        """The distinct numbers of some lists, sorted; all are less than `below`."""
        counts = self.counts[rows]
        shift = np.repeat(self.ends[rows] - counts.cumsum(dtype=np.int32), counts)
        found = np.zeros(below, dtype=bool)
        found[self.numbers[shift + np.arange(len(shift), dtype=np.int32)]] = True
        return np.flatnonzero(found).astype(np.int32)
