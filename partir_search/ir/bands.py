"""Bands: bounds on the distance between an element of a dim and the elements computed from it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from partir_search.ir.boundaries import Ints

NOWHERE = -1  # position of a zero in an index map


@dataclasses.dataclass(frozen=True, slots=True)
class IndexMap:
    """Position in a source dim of each element of a dim; `NOWHERE` for zeros.

    Attributes:
      data: the positions as int32.
    """

    data: bytes

    @property
    def positions(self) -> Ints:
        """[m] int64 positions."""
        return np.frombuffer(self.data, np.int32).astype(np.int64)

    def longer(self, size: int) -> IndexMap:
        """Map extended to a dim of `size` elements by zeros at the end."""
        here = self.positions
        return index_map(np.pad(here, (0, size - len(here)), constant_values=NOWHERE))


def index_map(positions: Ints) -> IndexMap:
    """Index map of an array [m] of positions."""
    return IndexMap(positions.astype(np.int32).tobytes())


@dataclasses.dataclass(frozen=True, slots=True)
class Band:
    """Sources of each point p: within `width` elements from ``step * p // over + first`` on."""

    step: int
    over: int
    first: int
    width: int

    @property
    def off(self) -> int:
        """Largest distance, in elements, between the scaled position of a point and its sources."""
        return max(abs(self.first), abs(self.first + self.width - 1))


def band_of(lows: Ints, highs: Ints, extent: int) -> Band:
    """Narrowest band of points with sources `lows[p]` to `highs[p]`.

    Args:
      lows / highs: [m] first and last source of each point; ``lows > highs`` for points without
        any.
      extent: elements of the source dim.
    """
    points = np.arange(len(lows))
    nonempty = lows <= highs
    bands = []
    for step, over in _slopes(extent, len(lows)):
        base = points * step // over
        first = int(np.min((lows - base)[nonempty], initial=extent if nonempty.any() else 0))
        last = int(np.max((highs - base)[nonempty], initial=-extent if nonempty.any() else 0))
        bands.append(Band(step, over, first, last - first + 1))
    return min(bands, key=lambda band: band.width)


def _slopes(extent: int, points: int) -> Iterator[tuple[int, int]]:
    if extent >= points:
        yield round(extent / max(points, 1)), 1
    else:
        yield 1, round(points / max(extent, 1))
    whole = math.gcd(extent, points) or 1
    yield extent // whole, max(points // whole, 1)
