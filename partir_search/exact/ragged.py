"""Arrays of different lengths, one after another in one array."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from partir_search.exact.arrays import Floats, Ints


class Ragged(Sequence[Floats]):
    """A sequence of arrays of one dim, as parts of one array.

    Attributes:
      entries: all arrays, one after another.
      starts: [n + 1] first place of each array in `entries`, and the end of the last.
    """

    def __init__(self, entries: Floats, lengths: Ints) -> None:
        """Arrays of the given lengths."""
        self.entries, self.starts = entries, starts_of(lengths)

    @classmethod
    def of(cls, arrays: Sequence[Floats]) -> Ragged:
        """A sequence of arrays; a ragged one is returned as is."""
        return arrays if isinstance(arrays, Ragged) else cls(joined(arrays), lengths_of(arrays))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, i: int) -> Floats: ...
    @overload
    def __getitem__(self, i: slice) -> list[Floats]: ...
    def __getitem__(self, i: int | slice) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        k = range(len(self))[i]
        return self.entries[self.starts[k] : self.starts[k + 1]]

    def __iter__(self) -> Iterator[Floats]:
        ends = self.starts.tolist()
        return (self.entries[a:b] for a, b in itertools.pairwise(ends))


def joined(arrays: Sequence[Floats]) -> Floats:
    """Arrays one after another; empty without any."""
    return np.concatenate(arrays) if len(arrays) else np.zeros(0)


def lengths_of(arrays: Sequence[npt.NDArray[Any]]) -> Ints:
    """[n] lengths of arrays."""
    if isinstance(arrays, Ragged):
        return np.diff(arrays.starts)
    return np.fromiter(map(len, arrays), dtype=np.int64, count=len(arrays))


def starts_of(lengths: Ints) -> Ints:
    """[n + 1] first place of each of n arrays side by side, and the end of the last."""
    found: Ints = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths)))
    return found


def cells(counts: Ints) -> tuple[Ints, Ints]:
    """Numbers from 0 to `len(counts)`, each as often as counted, and places from 0 within each."""
    owners = np.repeat(np.arange(len(counts)), counts)
    return owners, np.arange(len(owners)) - np.repeat(starts_of(counts)[:-1], counts)
