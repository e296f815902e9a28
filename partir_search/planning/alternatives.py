"""Known strategies beside a plan, with the padding, stacks and recomputation of the plan."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from partir_search.ir.core import Module
from partir_search.passes.remat import Range, find_segments, rematerialize
from partir_search.plan.alternatives import Alternative, Recomputed
from partir_search.plan.facts import PlanFacts
from partir_search.plan.planned import SearchReport
from partir_search.plan.spec import PlanSpec
from partir_search.planning.known_strategies import KnownMoves
from partir_search.planning.memory_fit import renamed_for
from partir_search.planning.planner import Planner
from partir_search.simulator.cost import Cost

MOST_STRATEGIES = 6  # strategies beside a plan, the best by folded costs


@dataclasses.dataclass(frozen=True, eq=False)
class Forms:
    """Forms of a plan's program with different segments computed again.

    Attributes:
      base: the program without recomputation.
      make_planner: function from a form to a planner.
      free: True if the planner chooses the segments (`remat="auto"`).
      twice: function from a plan's decisions to their cost with twice the batch, or None.
    """

    base: Module
    make_planner: Callable[[Module], Planner]
    free: bool
    twice: Callable[[PlanSpec], Cost | None]

    @functools.cached_property
    def _planners(self) -> dict[int, Planner]:
        return {}

    def planner_of(self, module: Module) -> Planner:
        """Planner of a form, made once."""
        if id(module) not in self._planners:  # planners keep their modules alive
            self._planners[id(module)] = self.make_planner(module)
        return self._planners[id(module)]

    @functools.cached_property
    def segments(self) -> list[Range]:
        """All segments of the forward pass."""
        return find_segments(self.base)

    @functools.cached_property
    def all_recomputed(self) -> Module | None:
        """The program with all segments computed again; None without segments."""
        return rematerialize(self.base, self.segments) if self.segments else None

    def of(self, plan: PlanFacts) -> dict[Recomputed, Module]:
        """Forms for the costs of known strategies, less recomputation first."""
        if not plan.remat:
            return {"none": plan.module}
        if not self.free:
            return {"as the plan": plan.module}
        forms: dict[Recomputed, Module] = {"none": self.base, "as the plan": plan.module}
        if self.all_recomputed and len(self.segments) > len(plan.remat):
            forms["all"] = self.all_recomputed
        return forms


def alternatives_of(plan: PlanFacts, forms: Forms) -> tuple[Alternative, ...]:
    """Best known strategies by the searches of a plan, costed as the plan is: on the whole program.

    Each strategy has the plan's padding, stacks and microbatches. Beside a plan with recomputed
    segments, a strategy recomputes none, the same or all: the least within the limit.
    """
    found: dict[str, Alternative] = {}
    modules = forms.of(plan)
    planners = {recomputed: forms.planner_of(module) for recomputed, module in modules.items()}
    for report in plan.searches:
        for each in _of_search(plan, report, planners):
            found.setdefault(each.name, each)
    ranked = sorted(found.values(), key=lambda a: (not a.fits, a.cost.seconds))
    return tuple(ranked[:MOST_STRATEGIES])


def _of_search(
    plan: PlanFacts, report: SearchReport, planners: dict[Recomputed, Planner]
) -> list[Alternative]:
    """Best known strategies on the axes of a search, after the decisions before the search."""
    known = {
        recomputed: KnownMoves(
            planner, report.axes, renamed_for(planner.module, report.before), report.exclude
        )
        for recomputed, planner in planners.items()
    }
    names = next(iter(known.values())).ranked()
    if len(known) > 1:
        names = sorted(names, key=lambda name: _folded_rank(known, name, plan.memory_limit))
    return [_costed(plan, known, name) for name in names[:MOST_STRATEGIES]]


def _folded_rank(
    known: dict[Recomputed, KnownMoves], name: str, limit: float
) -> tuple[bool, float]:
    """Rank of a strategy by the fastest fitting form, on folded programs."""
    costs = [form.costs[name] for form in known.values() if name in form.costs]
    return min((c.peak_bytes > limit, c.seconds) for c in costs)


def _costed(plan: PlanFacts, known: dict[Recomputed, KnownMoves], name: str) -> Alternative:
    """A strategy in the form with the least fitting recomputation, or with the lowest peak."""
    found: list[Alternative] = []
    for recomputed, form in known.items():
        if name not in form.costs:
            continue
        exceeds = form.costs[name].peak_bytes > plan.memory_limit
        if exceeds and recomputed == "none" and len(known) > 1:
            continue  # folded peaks agree with whole ones without recomputation
        cost = form.planned(name).cost
        fits = cost.peak_bytes <= plan.memory_limit
        found.append(Alternative(name, cost, fits, recomputed))
        if fits:
            break
    return min(found, key=lambda a: (not a.fits, a.cost.peak_bytes))
