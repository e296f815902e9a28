"""Boundaries: values of elements beyond the ends of a dim, with the modes of `jnp.pad`.

Beyond an end are zeros, or elements of the dim: from the opposite end (`wrap`), mirrored at the end
(`reflect`, `symmetric`), or the outermost element repeated (`edge`).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

ZERO = ""
MODES = (ZERO, "wrap", "edge", "reflect", "symmetric")

Run = tuple[int, int, int]  # position in the window, position in the dim, length
Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class Beyond:
    """Boundary modes of both ends of a dim.

    Attributes:
      extent: elements of the dim before padding; padded elements follow.
      below / above: one of `MODES`, for positions before the first and after the last element.
    """

    extent: int
    below: str = ZERO
    above: str = ZERO

    def sources(self, start: int, size: int) -> Ints:
        """[size] position in the dim of each element from `start` on; -1 for zeros."""
        places = np.arange(start, start + size)
        return np.where(
            places < 0,
            _mirrored(self.below, places, self.extent),
            np.where(places >= self.extent, _mirrored(self.above, places, self.extent), places),
        )

    def __str__(self) -> str:
        return f"{self.below or 'zero'}/{self.above or 'zero'}"


def _mirrored(mode: str, places: Ints, n: int) -> Ints:
    """Positions in a dim of `n` elements to copy to `places` beyond its ends; -1 for zeros."""
    if mode == ZERO:
        return np.full_like(places, -1)
    if mode == "wrap":
        return places % n
    if mode == "edge" or n == 1:
        return np.clip(places, 0, n - 1)
    if mode == "reflect":
        turned = places % (2 * n - 2)
        return np.where(turned < n, turned, 2 * n - 2 - turned)
    turned = places % (2 * n)
    return np.where(turned < n, turned, 2 * n - 1 - turned)


@functools.lru_cache(maxsize=65536)
def runs(start: int, size: int, extent: int, beyond: Beyond | None) -> tuple[Run, ...]:
    """Consecutive pieces of a dim of `extent` elements in a window, in order, without zeros.

    Args:
      start / size: the window; it may reach beyond the ends.
    """
    if beyond is None:
        first, last = max(start, 0), min(start + size, extent)
        return ((first - start, first, last - first),) if first < last else ()
    return runs_of(beyond.sources(start, size))


def runs_of(sources: Ints) -> tuple[Run, ...]:
    """Runs of consecutive positions in an index map; elements of -1 are left out."""
    if not len(sources):
        return ()
    cuts = np.flatnonzero((np.diff(sources) != 1) | (sources[1:] == 0)) + 1
    starts = [0, *cuts.tolist()]
    ends = [*starts[1:], len(sources)]
    pairs = zip(starts, ends, strict=True)
    return tuple((a, int(sources[a]), b - a) for a, b in pairs if sources[a] >= 0)


def taken(x: Any, dim: int, start: int, size: int, beyond: Beyond | None) -> Any:
    """Elements `start` to ``start + size`` of `x` along `dim`, filled in beyond the ends."""
    pieces, at = [], 0

    def zeros(n: int) -> Any:
        shape = [n if d == dim else m for d, m in enumerate(x.shape)]
        return jnp.zeros(shape, x.dtype)

    for to, source, n in runs(start, size, x.shape[dim], beyond):
        if to > at:
            pieces.append(zeros(to - at))
        pieces.append(lax.slice_in_dim(x, source, source + n, axis=dim))
        at = to + n
    if at < size or not pieces:
        pieces.append(zeros(size - at))
    return lax.concatenate(pieces, dim) if len(pieces) > 1 else pieces[0]
