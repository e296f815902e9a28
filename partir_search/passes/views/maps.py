"""Index maps of one dim: where each element of a view comes from.

A map is an array with a position in the base's dim for each element, `FILLER` where the view has
its filler, `ANY` where nobody looks.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from partir_search.ir.boundaries import MODES, ZERO, Beyond, Ints, runs_of
from partir_search.rules.shifts import LITTLE

FILLER, ANY = -1, -2


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """A map as a shift: element p is element ``p + first`` of a dim of `extent` elements.

    Attributes:
      size: elements of the view.
      below / above: padding beyond the dim's ends (see `ir.boundaries`).
      kept: (start, end) of the view's elements that count; the filler stands elsewhere. None if
        all do, or all but those beyond the ends.
    """

    extent: int
    size: int
    first: int
    below: str
    above: str
    kept: tuple[int, int] | None

    @property
    def turns(self) -> bool:
        """Tells whether elements of the dim itself stand beyond its ends."""
        return (self.below, self.above) != (ZERO, ZERO)

    @property
    def wraps(self) -> bool:
        """Tells whether the dim goes on with its other end."""
        return self.below == self.above == "wrap"

    @property
    def low(self) -> int:
        """Elements before the dim's first."""
        return -self.first

    @property
    def high(self) -> int:
        """Elements after the dim's last."""
        return self.first + self.size - self.extent

    @property
    def near(self) -> bool:
        """Tells whether most elements of a tile of the view are in the same tile of the dim."""
        if self.wraps and abs(self.size - self.extent) <= LITTLE * self.extent:
            return True
        return max(abs(self.low), abs(self.high)) <= LITTLE * self.extent


def identity(n: int) -> Ints:
    """The map of a dim as it is."""
    return np.arange(n)


def form_of(sources: Ints, n: int) -> Form | None:
    """A map into a dim of `n` elements as a shift, or None if it is not one."""
    found = runs_of(sources)
    if not found or not n:
        return None
    m = len(sources)
    to, source, _ = max(found, key=lambda r: r[2])
    first = source - to
    places = np.arange(first, first + m)
    under, over = places < 0, places >= n
    inside = ~(under | over)
    filled = sources == FILLER
    if not (filled | (sources == ANY) | (sources == places))[inside].all():
        return None
    below, above = _mode(sources, first, n, under), _mode(sources, first, n, over)
    if below is None or above is None:
        return None
    if not under.any():
        below = above
    if not over.any():
        above = below
    kept = None
    if filled[inside].any():
        held = np.flatnonzero(~filled)
        kept = int(held[0]), int(held[-1]) + 1
        if kept[1] - kept[0] != len(held):
            return None
    return Form(n, m, first, below, above, kept)


def _mode(sources: Ints, first: int, n: int, outside: npt.NDArray[np.bool_]) -> str | None:
    """The first mode that explains the elements beyond one end."""
    for mode in MODES:
        wanted = Beyond(n, mode, mode).sources(first, len(sources))
        if ((sources == wanted) | (sources == ANY))[outside].all():
            return mode
    return None
