"""Lists of ints in two arrays, smaller than one tuple per list."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Sequence

import numpy as np


class FlatLists(Sequence[tuple[int, ...]]):
    """Immutable lists of ints by index."""

    def __init__(self, pairs: Iterable[tuple[int, int]], length: int) -> None:
        """Lists of the numbers in `pairs`, in order.

        Args:
          pairs: (index, number) pairs.
          length: number of lists.
        """
        flat = np.fromiter(itertools.chain.from_iterable(pairs), np.int32).reshape(-1, 2)
        ends = np.cumsum(np.bincount(flat[:, 0], minlength=length))
        numbers = flat[np.argsort(flat[:, 0], kind="stable"), 1]
        self._ends = array("i", ends.astype(np.int32).tobytes())
        self._numbers = array("i", numbers.tobytes())

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> tuple[int, ...]:  # type: ignore[override]
        first = self._ends[index - 1] if index else 0
        return tuple(self._numbers[first : self._ends[index]])
