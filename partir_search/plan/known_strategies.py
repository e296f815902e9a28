"""Known strategies of a step as plans."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from partir_search.messages.console import new_table
from partir_search.messages.shown import Shown
from partir_search.messages.wording import amount, did_you_mean, milliseconds
from partir_search.plan.legend import legend
from partir_search.plan.plan import Plan

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class KnownStrategies(Shown, Mapping[str, Plan]):
    """The known strategies of a step as plans, by name, the fastest that fit first."""

    plans: Mapping[str, Plan]

    def __getitem__(self, name: str) -> Plan:
        if name not in self.plans:
            near = did_you_mean(str(name), self.plans)
            first = ", ".join(list(self)[:6])
            raise KeyError(f"no strategy {name!r}; there are {first}, ...{near}")
        return self.plans[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.plans, key=self._rank))

    def __len__(self) -> int:
        return len(self.plans)

    def _rank(self, name: str) -> tuple[bool, float]:
        plan = self.plans[name]
        return not plan.fits, plan.cost.seconds

    def __rich__(self) -> RenderableType:
        machine = next(iter(self.plans.values())).machine.name if self.plans else "?"
        table = new_table(
            title=f"known strategies, simulated on {machine}",
            title_justify="left",
            caption=f"as the program is, without recomputation. {legend(self)}",
            caption_justify="left",
        )
        table.add_column("strategy", overflow="fold")
        for column in ("a step", "exposed", "peak", "fits", "collectives"):
            table.add_column(column, justify="right")
        by_figures: dict[tuple[str, ...], list[str]] = {}  # names by table row
        for name in self:
            plan = self.plans[name]
            c, counts = plan.cost, plan.collective_counts
            numbers = milliseconds(c.seconds), milliseconds(c.collective_seconds)
            fits = "yes" if plan.fits else "no"
            figures = (*numbers, amount(c.peak_bytes), fits, str(sum(counts.values())))
            by_figures.setdefault(figures, []).append(name)
        for row, names in by_figures.items():
            more = f" (and {len(names) - 1} alike)" if len(names) > 1 else ""
            table.add_row(min(names, key=len) + more, *row)
        return table
