"""Lower bound of the plans of a search, found in full at first access.

A search needs a bound as far as it leads to better answers or proves one. The work that only
tightens the figure waits until a report, a file or a user asks for the figure.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable


@dataclasses.dataclass(frozen=True, slots=True)
class LowerBound:
    """Lower bound of seconds.

    Attributes:
      seconds: no plan of the space takes fewer, on the folded program.
      without: decisions that no plan of the space has, as in `PlanBound.without`.
    """

    seconds: float
    without: tuple[str, ...] = ()


class LaterBound:
    """A lower bound that a function finds at first access, once; the function is dropped then."""

    def __init__(self, find: Callable[[], LowerBound | None]) -> None:
        """A bound found by `find`, whose result does not depend on the time of the call."""
        self._find: Callable[[], LowerBound | None] | None = find

    @functools.cached_property
    def found(self) -> LowerBound | None:
        """The bound; None if none is known."""
        assert self._find is not None
        found, self._find = self._find(), None
        return found


def found_in_full(known: LowerBound | LaterBound | None) -> LowerBound | None:
    """A bound, found now if left for later; None if none is known."""
    return known.found if isinstance(known, LaterBound) else known
