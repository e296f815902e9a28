"""Lists of ints in two arrays, smaller than one tuple per list."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterable, Sequence


class FlatLists(Sequence[tuple[int, ...]]):
    """Immutable lists of ints by index."""

    def __init__(self, pairs: Callable[[], Iterable[tuple[int, int]]], length: int) -> None:
        """Lists of the given pairs.

        Args:
          pairs: returns (index, number) pairs, in the same order at each of two calls.
          length: number of lists.
        """
        counts = array("i", [0]) * length
        for index, _ in pairs():
            counts[index] += 1
        self._ends = array("i", itertools.accumulate(counts))
        at = array("i", [0, *self._ends[:-1]])
        self._numbers = array("i", [0]) * sum(counts)
        for index, number in pairs():
            self._numbers[at[index]] = number
            at[index] += 1

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> tuple[int, ...]:  # type: ignore[override]
        first = self._ends[index - 1] if index else 0
        return tuple(self._numbers[first : self._ends[index]])
