"""Comparison of two plans by argument tiling, collective, seconds and bytes."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from partir_search.messages.console import grouped, new_table
from partir_search.messages.shown import Shown
from partir_search.messages.wording import amount, milliseconds, shown
from partir_search.plan.facts import PlanFacts
from partir_search.propagation.actions import Action

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


@dataclasses.dataclass(frozen=True)
class CollectiveGroup:
    """Key of collectives with the same kind, mesh axes and source line."""

    kind: str
    axes: tuple[str, ...]
    source: str


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Comparison(Shown):
    """Differences between the plans `before` and `after`; printing shows tables.

    Attributes:
      before: the reference plan.
      after: the changed plan.
      dropped: actions of `before` in conflict with the requested change (`Plan.what_if` only).
    """

    before: PlanFacts
    after: PlanFacts
    dropped: tuple[Action, ...] = ()

    @property
    def seconds(self) -> float:
        """Simulated seconds per step of `after` minus `before`."""
        return self.after.cost.seconds - self.before.cost.seconds

    @property
    def peak_bytes(self) -> float:
        """Peak bytes per device of `after` minus `before`."""
        return self.after.cost.peak_bytes - self.before.cost.peak_bytes

    @property
    def arguments(self) -> dict[str, tuple[str, str]]:
        """Specs (before, after) of arguments tiled differently, by path; "" where missing."""
        one, two = (
            {path: str(spec) for path, _, spec in p.arguments()} for p in (self.before, self.after)
        )
        paths = [*one, *(p for p in two if p not in one)]
        both = {p: (one.get(p, ""), two.get(p, "")) for p in paths}
        return {p: pair for p, pair in both.items() if pair[0] != pair[1]}

    @property
    def collectives(self) -> dict[CollectiveGroup, tuple[float, float]]:
        """Bytes (before, after) of collectives per step and device, for groups that changed."""
        one, two = _volumes(self.before), _volumes(self.after)
        both = {g: (one.get(g, 0.0), two.get(g, 0.0)) for g in (*one, *two)}
        return {g: pair for g, pair in both.items() if pair[0] != pair[1]}

    def __rich__(self) -> RenderableType:
        return grouped(self._figures(), *self._details())

    def _figures(self) -> Table:
        table = new_table(title="figures of a step on a device", title_justify="left")
        table.add_column("")
        for column in ("before", "after", "difference"):
            table.add_column(column, justify="right")
        a, b = self.before.cost, self.after.cost
        rows: list[tuple[str, float, float, Callable[[float], str]]] = [
            ("a step", a.seconds, b.seconds, milliseconds),
            ("exposed collectives", a.collective_seconds, b.collective_seconds, milliseconds),
            ("peak", a.peak_bytes, b.peak_bytes, amount),
            ("TFLOP", a.flops, b.flops, lambda flops: f"{flops / 1e12:.3f}"),
            ("sent", self.before.sent_bytes, self.after.sent_bytes, amount),
        ]
        for name, x, y, text in rows:
            change = f"{y / x - 1:+.1%}" if x else ("" if x == y else "new")
            table.add_row(name, text(x), text(y), change)
        return table

    def _details(self) -> Iterator[RenderableType]:
        if self.arguments:
            table = new_table(title="arguments tiled otherwise", title_justify="left")
            for column in ("argument", "before", "after"):
                table.add_column(column)
            for path, pair in self.arguments.items():
                table.add_row(path, *pair)
            yield table
        if self.collectives:
            table = new_table(title="collectives (bytes on a device)", title_justify="left")
            for column in ("kind", "axes", "where"):
                table.add_column(column)
            for column in ("before", "after"):
                table.add_column(column, justify="right")
            changes = sorted(self.collectives.items(), key=lambda c: -abs(c[1][0] - c[1][1]))
            for g, (x, y) in changes:
                table.add_row(g.kind, ", ".join(g.axes), g.source, f"{x:,.0f}", f"{y:,.0f}")
            yield table
        if self.dropped:
            yield "left out: " + "; ".join(map(str, self.dropped))


def _volumes(plan: PlanFacts) -> dict[CollectiveGroup, float]:
    found: dict[CollectiveGroup, float] = collections.defaultdict(float)
    for c in plan.collectives:
        found[CollectiveGroup(c.kind, c.axes, c.source)] += float(c.bytes * c.times)
    return dict(found)


def compare(before: PlanFacts, after: PlanFacts) -> Comparison:
    """Compares two plans: tilings, collectives, seconds and bytes.

    The plans may have different meshes, machines or functions; arguments are matched by path.
    """
    for name, plan in (("before", before), ("after", after)):
        if not hasattr(plan, "cost") or not hasattr(plan, "arguments"):
            loaded = (
                ""
                if not hasattr(plan, "actions")
                else ("; a loaded plan has no figures: pass it as schedule=, compare .plan(...)")
            )
            raise TypeError(f"compare: {name} is a Plan, not {shown(plan)}{loaded}")
    return Comparison(before, after)
