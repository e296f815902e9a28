"""Bands: elements of a dim that lie near the place of the element that is made of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from partir_search.ir.boundaries import Ints

NOWHERE = -1  # in an index map: a zero stands there


@dataclasses.dataclass(frozen=True, slots=True)
class IndexMap:
    """Positions in a dim, one for each element of another dim; `NOWHERE` for zeros.

    Attributes:
      data: the positions as int32.
    """

    data: bytes

    @property
    def positions(self) -> Ints:
        """[m] int64."""
        return np.frombuffer(self.data, np.int32).astype(np.int64)

    def longer(self, size: int) -> IndexMap:
        """The map of a dim of `size` elements, the last ones zeros."""
        here = self.positions
        return index_map(np.pad(here, (0, size - len(here)), constant_values=NOWHERE))


def index_map(positions: Ints) -> IndexMap:
    """The map of an array [m] of positions."""
    return IndexMap(positions.astype(np.int32).tobytes())


@dataclasses.dataclass(frozen=True, slots=True)
class Band:
    """Point p is made of some of `width` elements from ``step * p // over + first`` on."""

    step: int
    over: int
    first: int
    width: int

    @property
    def off(self) -> int:
        """Elements between a point's own place and the farthest that it is made of."""
        return max(abs(self.first), abs(self.first + self.width - 1))


def band_of(lows: Ints, highs: Ints, extent: int) -> Band:
    """The narrowest band in which points lie that are made of elements `lows` to `highs` ([m] each)
    of a dim of `extent`; points of ``lows > highs`` are made of none.
    """
    points = np.arange(len(lows))
    held = lows <= highs
    bands = []
    for step, over in _slopes(extent, len(lows)):
        base = points * step // over
        first = int(np.min((lows - base)[held], initial=extent if held.any() else 0))
        last = int(np.max((highs - base)[held], initial=-extent if held.any() else 0))
        bands.append(Band(step, over, first, last - first + 1))
    return min(bands, key=lambda band: band.width)


def _slopes(extent: int, points: int) -> Iterator[tuple[int, int]]:
    if extent >= points:
        yield round(extent / max(points, 1)), 1
    else:
        yield 1, round(points / max(extent, 1))
    whole = math.gcd(extent, points) or 1
    yield extent // whole, max(points // whole, 1)
