"""Options of mesh axes besides tiling: collective matmuls, kept copies, rings, axis order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Modes:
    """Choices for whole axes, by position in the mesh. Immutable.

    Attributes:
      streams: axes with collective matmuls (`lowering/collective_matmul.py`) and ring attention;
        True for the zigzag order of ring attention.
      holds: axes on which copies gathered in the forward pass are kept for the backward pass.
      forms: schedule of the rings on each diagonal (`ir/skewed_schedule.py`); output-stationary on
        diagonals without an entry.
      nests: (major, minor) pairs of axes with a fixed order on dims tiled by both.
      enters / leaves: (index, layout) of arguments and results with a boundary layout different
        from the layout in the program.
    """

    streams: Mapping[int, bool] = dataclasses.field(default_factory=dict)
    holds: frozenset[int] = frozenset()
    forms: Mapping[int, str] = dataclasses.field(default_factory=dict)
    nests: frozenset[tuple[int, int]] = frozenset()
    enters: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...] = ()
    leaves: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...] = ()

    def nested(self, axes: Sequence[int]) -> list[int]:
        """Axes in the given order, reordered only to satisfy `nests`.

        Raises:
          ValueError: `nests` has a cycle among the axes.
        """
        left, out = list(axes), list[int]()
        while left:
            inner = {minor for major, minor in self.nests if major in left}
            first = next((a for a in left if a not in inner), None)
            if first is None:
                raise ValueError("axes are to be major to each other")
            left.remove(first)
            out.append(first)
        return out


NO_MODES = Modes()
