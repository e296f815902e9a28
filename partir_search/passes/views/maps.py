"""Index maps of one dim: the source position of each element of a view.

A map is an int array with a position in the base's dim for each element: `FILLER` for the view's
filler, `ANY` for elements read by no op.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from partir_search.ir.boundaries import MODES, ZERO, Beyond, Ints, runs_of
from partir_search.rules.shifts import LITTLE

FILLER, ANY = -1, -2


@dataclasses.dataclass(frozen=True, slots=True)
class Shift:
    """A map in which element p reads element ``p + first`` of a dim of `extent` elements.

    Attributes:
      extent: elements of the dim.
      size: elements of the view.
      first: source of element 0; may be negative.
      below: padding before the dim's first element (see `ir.boundaries`).
      above: padding after the dim's last element.
      kept: (start, end) of the view's elements that are read; the filler fills the rest. None if
        all elements inside the dim are read.
    """

    extent: int
    size: int
    first: int
    below: str
    above: str
    kept: tuple[int, int] | None

    @property
    def has_boundary(self) -> bool:
        """True if elements beyond an end are copies of the dim's elements, not zeros."""
        return (self.below, self.above) != (ZERO, ZERO)

    @property
    def wraps(self) -> bool:
        """True if elements beyond each end come from the opposite end."""
        return self.below == self.above == "wrap"

    @property
    def low(self) -> int:
        """Elements before the dim's first; negative if elements are dropped."""
        return -self.first

    @property
    def high(self) -> int:
        """Elements after the dim's last; negative if elements are dropped."""
        return self.first + self.size - self.extent

    @property
    def is_local(self) -> bool:
        """True if most elements of a tile of the view lie in the dim's tile of the same number."""
        if self.wraps and abs(self.size - self.extent) <= LITTLE * self.extent:
            return True
        return max(abs(self.low), abs(self.high)) <= LITTLE * self.extent


def identity(n: int) -> Ints:
    """Returns the map of an unchanged dim of `n` elements."""
    return np.arange(n)


def shift_of(sources: Ints, n: int) -> Shift | None:
    """Returns a map into a dim of `n` elements as a shift, or None if it is none."""
    runs = runs_of(sources)
    if not runs or not n:
        return None
    size = len(sources)
    target, source, _ = max(runs, key=lambda r: r[2])
    first = source - target
    places = np.arange(first, first + size)
    before_first, after_last = places < 0, places >= n
    inside = ~(before_first | after_last)
    is_filler = sources == FILLER
    if not (is_filler | (sources == ANY) | (sources == places))[inside].all():
        return None
    below, above = _mode(sources, first, n, before_first), _mode(sources, first, n, after_last)
    if below is None or above is None:
        return None
    if not before_first.any():
        below = above
    if not after_last.any():
        above = below
    kept = None
    if is_filler[inside].any():
        kept_positions = np.flatnonzero(~is_filler)
        kept = int(kept_positions[0]), int(kept_positions[-1]) + 1
        if kept[1] - kept[0] != len(kept_positions):
            return None
    return Shift(n, size, first, below, above, kept)


def _mode(sources: Ints, first: int, n: int, outside: npt.NDArray[np.bool_]) -> str | None:
    """Returns the first mode that explains the elements beyond one end, or None."""
    for mode in MODES:
        wanted = Beyond(n, mode, mode).sources(first, len(sources))
        if ((sources == wanted) | (sources == ANY))[outside].all():
            return mode
    return None
