"""Boundaries: elements that stand beyond the ends of a dim, as `jnp.pad` has them.

A stretch of a dim may reach beyond its ends. There it holds zeros, or elements of the dim itself:
those of its other end (`wrap`), of its own end mirrored (`reflect`, `symmetric`), or its outermost
element over and over (`edge`).
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

Run = tuple[int, int, int]  # position in the stretch, position in the dim, length
Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class Beyond:
    """Modes of both ends of a dim.

    Attributes:
      extent: elements of the dim that count; what was padded to it comes after them.
      below / above: one of `MODES`, for places before the first and after the last element.
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
    """Positions that stand for `places` beyond the ends of a dim of `n` elements."""
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
    """Pieces that a stretch takes of a dim of `extent` elements, zeros left out, in order."""
    if beyond is None:
        first, last = max(start, 0), min(start + size, extent)
        return ((first - start, first, last - first),) if first < last else ()
    return runs_of(beyond.sources(start, size))


def runs_of(sources: Ints) -> tuple[Run, ...]:
    """An index map in runs of consecutive elements; -1 stands for what is taken from nowhere."""
    if not len(sources):
        return ()
    cuts = np.flatnonzero((np.diff(sources) != 1) | (sources[1:] == 0)) + 1
    starts = [0, *cuts.tolist()]
    ends = [*starts[1:], len(sources)]
    pairs = zip(starts, ends, strict=True)
    return tuple((a, int(sources[a]), b - a) for a, b in pairs if sources[a] >= 0)


def taken(x: Any, dim: int, start: int, size: int, beyond: Beyond | None) -> Any:
    """Elements of `x` along `dim` from `start` on, those beyond the ends included."""
    parts, at = [], 0

    def zeros(n: int) -> Any:
        shape = [n if d == dim else m for d, m in enumerate(x.shape)]
        return jnp.zeros(shape, x.dtype)

    for to, source, n in runs(start, size, x.shape[dim], beyond):
        if to > at:
            parts.append(zeros(to - at))
        parts.append(lax.slice_in_dim(x, source, source + n, axis=dim))
        at = to + n
    if at < size or not parts:
        parts.append(zeros(size - at))
    return lax.concatenate(parts, dim) if len(parts) > 1 else parts[0]
