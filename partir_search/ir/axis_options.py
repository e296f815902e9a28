"""Options of mesh axes besides tiling: collective matmuls, kept copies, rings, axis order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Modes:
    """Choices for whole axes, by position in the mesh. Immutable.

    Attributes:
      windowed_einsums: axes with collective matmuls (`lowering/collective_matmul.py`) and ring
        attention; True for the zigzag order of ring attention.
      keep_gathered: axes on which copies gathered in the forward pass are kept for the backward
        pass.
      ring_schedules: schedule of the rings on each diagonal (`ir/skewed_schedule.py`);
        output-stationary on diagonals without an entry.
      axis_orders: (major, minor) pairs of axes with a fixed order on dims tiled by both.
      argument_layouts / result_layouts: (index, layout) of arguments and results with a boundary
        layout different from the layout in the program.
    """

    windowed_einsums: Mapping[int, bool] = dataclasses.field(default_factory=dict)
    keep_gathered: frozenset[int] = frozenset()
    ring_schedules: Mapping[int, str] = dataclasses.field(default_factory=dict)
    axis_orders: frozenset[tuple[int, int]] = frozenset()
    argument_layouts: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...] = ()
    result_layouts: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...] = ()

    def ordered(self, axes: Sequence[int]) -> list[int]:
        """Axes in the given order, reordered only to satisfy `axis_orders`.

        Raises:
          ValueError: `axis_orders` has a cycle among the axes.
        """
        left, out = list(axes), list[int]()
        while left:
            inner = {minor for major, minor in self.axis_orders if major in left}
            first = next((a for a in left if a not in inner), None)
            if first is None:
                raise ValueError("axes are to be major to each other")
            left.remove(first)
            out.append(first)
        return out


NO_MODES = Modes()
