"""Front of a plan: other plans of the program, from the fastest to the smallest in memory."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from partir_search.messages.console import new_table
from partir_search.messages.shown import Shown
from partir_search.messages.wording import amount
from partir_search.passes.remat import Range
from partir_search.propagation.actions import Action
from partir_search.simulator.cost import Cost

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

P = TypeVar("P")  # the plans


@dataclasses.dataclass(frozen=True, eq=False)
class FrontPoint(Generic[P]):
    """A plan on a front, before the plan is made.

    Attributes:
      cost: simulated cost per step on one device, of the whole program.
      strategy: origin of the decisions, in words.
      actions: decisions, in replay order.
      remat: segments of the forward pass computed again.
      fits: True if the peak is within the memory limit.
      chosen: True for the plan of which this is the front.
    """

    cost: Cost
    strategy: str
    actions: tuple[Action, ...]
    remat: tuple[Range, ...]
    fits: bool
    chosen: bool
    _make: Callable[[FrontPoint[P]], P] = dataclasses.field(repr=False)

    @property
    def seconds(self) -> float:
        """Simulated seconds per step."""
        return self.cost.seconds

    @property
    def peak_bytes(self) -> float:
        """Peak bytes on one device."""
        return self.cost.peak_bytes

    def plan(self) -> P:
        """The plan of the point, as usable as any: printed, saved, or given as `schedule=`.

        The first call replays the decisions; the plan is kept.
        """
        return self._plan

    @functools.cached_property
    def _plan(self) -> P:
        return self._make(self)

    def to_json(self) -> dict[str, Any]:
        """Figures of the point, as JSON values."""
        return {
            "seconds": self.seconds,
            "peak_bytes": self.peak_bytes,
            "strategy": self.strategy,
            "recomputed": len(self.remat),
            "fits": self.fits,
            "chosen": self.chosen,
        }


@dataclasses.dataclass(frozen=True, eq=False)
class Front(Shown, Sequence[FrontPoint[P]], Generic[P]):
    """Points of which none is as fast and as small as another, fastest first; at least one.

    Attributes:
      points: the points.
      limit: bytes per device allowed by the goals.
      note: the choices that the points vary.
    """

    points: tuple[FrontPoint[P], ...]
    limit: float
    note: str

    @overload
    def __getitem__(self, at: int) -> FrontPoint[P]: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[FrontPoint[P]]: ...
    def __getitem__(self, at: int | slice) -> FrontPoint[P] | Sequence[FrontPoint[P]]:
        return self.points[at]

    def __iter__(self) -> Iterator[FrontPoint[P]]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    @property
    def chosen(self) -> FrontPoint[P] | None:
        """The point of the plan itself; None if another point is as fast and as small."""
        return next((p for p in self.points if p.chosen), None)

    @property
    def smallest(self) -> FrontPoint[P]:
        """The point with the fewest bytes."""
        return self.points[-1]

    @property
    def fastest(self) -> FrontPoint[P]:
        """The point with the fewest seconds, within the limit or not."""
        return self.points[0]

    def within(self, nbytes: float) -> FrontPoint[P]:
        """The fastest point with a peak of at most `nbytes`.

        Raises:
          ValueError: no point is as small.
        """
        for point in self.points:
            if point.peak_bytes <= nbytes:
                return point
        raise ValueError(
            f"no point of the front is within {amount(nbytes)}; the smallest needs"
            f" {amount(self.smallest.peak_bytes)}"
        )

    def marked(self, chosen: FrontPoint[P]) -> Front[P]:
        """The same front, of the plan of another point."""
        points = (dataclasses.replace(p, chosen=p is chosen) for p in self.points)
        return dataclasses.replace(self, points=tuple(points))

    def to_json(self) -> list[dict[str, Any]]:
        """Figures of all points, as JSON values."""
        return [point.to_json() for point in self.points]

    def __rich__(self) -> RenderableType:
        return self.table()

    def table(self) -> Table:
        """Table of the points, fastest first."""
        table = new_table(title="seconds against memory", title_justify="left", caption=self.note)
        table.caption_justify = "left"
        table.add_column("")
        for column in ("ms", "of them collectives", "peak", "fits", "recomputed"):
            table.add_column(column, justify="right")
        table.add_column("strategy")
        for p in self.points:
            numbers = f"{p.seconds * 1e3:.3f}", f"{p.cost.collective_seconds * 1e3:.3f}"
            fits = "yes" if p.fits else "no"
            again = str(len(p.remat) or "")
            mark = "chosen" if p.chosen else ""
            table.add_row(mark, *numbers, amount(p.peak_bytes, 4), fits, again, p.strategy)
        return table

    def __repr__(self) -> str:
        ends = f"{self.fastest.cost} to {self.smallest.cost}"
        limit = f", limit {amount(self.limit)}" if math.isfinite(self.limit) else ""
        return f"Front({len(self)} points, {ends}{limit})"
