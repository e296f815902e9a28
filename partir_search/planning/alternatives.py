"""Known strategies beside a plan, with the padding, stacks and recomputation of the plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from partir_search.ir.core import Module
from partir_search.plan.alternatives import Alternative, Recomputed
from partir_search.plan.facts import PlanFacts
from partir_search.plan.planned import SearchReport
from partir_search.plan.spec import PlanSpec
from partir_search.planning.known_strategies import KnownMoves
from partir_search.planning.memory_fit import renamed_for
from partir_search.planning.planner import Planner
from partir_search.planning.planner_cache import PlannerCache
from partir_search.propagation.actions import Action
from partir_search.propagation.apply import apply_compatible
from partir_search.propagation.state import State
from partir_search.simulator.cost import Cost

MOST_STRATEGIES = 5  # strategies beside a plan, the best by folded costs

Figures = tuple[float, float]  # seconds and peak bytes on a folded program


@dataclasses.dataclass(frozen=True, eq=False)
class Forms:
    """Forms of a plan's program with different segments computed again.

    Attributes:
      base: the program without recomputation.
      planner_of: planners of the forms, shared with the search.
      free: True if the planner chooses the segments (`remat="auto"`).
      twice: function from a plan's decisions to their cost with twice the batch, or None.
    """

    base: Module
    planner_of: PlannerCache
    free: bool
    twice: Callable[[PlanSpec], Cost | None]

    @property
    def all_recomputed(self) -> Module | None:
        """The program with all segments computed again; None without segments."""
        form = self.planner_of.recomputed(self.base)
        return form.module if form.segments else None

    def of(self, plan: PlanFacts) -> dict[Recomputed, Module]:
        """Forms for the costs of known strategies, less recomputation first."""
        if not plan.remat:
            return {"none": plan.module}
        forms: dict[Recomputed, Module] = {"as the plan": plan.module}
        if not self.free:
            return forms
        planner = self.planner_of(self.base)
        if planner.model.least_peak(planner.mesh.devices) <= plan.memory_limit:
            forms = {"none": self.base, **forms}
        everything = self.planner_of.recomputed(self.base)
        if everything.segments != plan.remat:
            forms["all"] = everything.module
        return forms


def alternatives_of(plan: PlanFacts, forms: Forms) -> tuple[Alternative, ...]:
    """Best known strategies by the searches of a plan, costed as the plan is: on the whole program.

    Each strategy has the plan's padding, stacks and microbatches. Beside a plan with recomputed
    segments, a strategy recomputes none, the same or all: the least within the limit.
    """
    found: dict[str, Alternative] = {}
    for report in plan.searches:
        for each in _OfSearch(plan, report, forms).best():
            found.setdefault(each.name, each)
    ranked = sorted(found.values(), key=lambda a: (not a.fits, a.cost.seconds))
    return tuple(ranked[:MOST_STRATEGIES])


class _OfSearch:
    """Known strategies on the axes of a search, after the decisions before the search."""

    def __init__(self, plan: PlanFacts, report: SearchReport, forms: Forms) -> None:
        modules = forms.of(plan)
        self._limit = plan.memory_limit
        # A program with layers partly recomputed folds badly: strategies of the form with all
        # layers recomputed are played on it instead.
        partly = modules.pop("as the plan") if "all" in modules else None
        self._partly = forms.planner_of(partly) if partly else None
        self._known: dict[Recomputed, KnownMoves] = {
            recomputed: KnownMoves(
                forms.planner_of(module),
                report.axes,
                renamed_for(module, report.before),
                report.exclude,
            )
            for recomputed, module in modules.items()
        }

    def best(self) -> list[Alternative]:
        """The best strategies by folded costs, costed on the whole program."""
        names = next(iter(self._known.values())).ranked()
        if len(self._known) > 1:
            names.sort(key=self._folded_rank)
        alike: dict[tuple[Figures, ...], list[str]] = {}
        for name in names:  # axes of equal sizes can change places
            figures = (_figures(form.costs[name]) for form in self._forms(name).values())
            alike.setdefault(tuple(figures), []).append(name)
        return [self._costed(*group) for group in list(alike.values())[:MOST_STRATEGIES]]

    def _forms(self, name: str) -> Mapping[Recomputed, KnownMoves]:
        return {key: form for key, form in self._known.items() if name in form.costs}

    def _folded_rank(self, name: str) -> tuple[bool, float]:
        """Rank of a strategy by the fastest fitting form, on folded programs."""
        costs = (form.costs[name] for form in self._forms(name).values())
        return min((c.peak_bytes > self._limit, c.seconds) for c in costs)

    def _costed(self, name: str, *alike: str) -> Alternative:
        """A strategy in the form with the least fitting recomputation, or with the lowest peak."""
        found: list[Alternative] = []

        def fitted(recomputed: Recomputed, cost: Cost | None) -> bool:
            if cost is None:
                return False
            fits = cost.peak_bytes <= self._limit
            found.append(Alternative(name, cost, fits, recomputed, alike))
            return fits

        forms = self._forms(name)
        for recomputed, form in forms.items():
            if recomputed == "all" and self._partly is not None:
                actions = form.planned_actions(name)
                if fitted("as the plan", _cost_within(self._partly, actions, self._limit)):
                    break
            exceeds = form.costs[name].peak_bytes > self._limit
            if exceeds and recomputed == "none" and len(forms) > 1:
                continue  # folded peaks agree with whole ones without recomputation
            if fitted(recomputed, form.planned(name).cost):
                break
        return min(found, key=lambda a: (not a.fits, a.cost.peak_bytes))


def _figures(cost: Cost) -> Figures:
    """Figures of a folded cost, to nine digits: sums in another order differ in the last."""
    return float(f"{cost.seconds:.9g}"), float(f"{cost.peak_bytes:.9g}")


def _cost_within(planner: Planner, actions: Sequence[Action], limit: float) -> Cost | None:
    """Cost of the actions of another form; None beyond a limit of bytes, or if some do not hold."""
    state = State(planner.graph, planner.mesh)
    played, dropped = apply_compatible(state, renamed_for(planner.module, actions))
    if dropped:
        return None
    load = planner.model.load(state.partition(planner.cache.rows))
    if planner.model.lower_bound(load).peak_bytes > limit:
        return None
    return planner.finish(state, played).cost
