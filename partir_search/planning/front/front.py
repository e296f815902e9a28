"""Front of a plan: candidates of all forms, costed on the whole program and thinned."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from partir_search.ir.core import Module
from partir_search.mcts.front import nondominated, spread
from partir_search.passes.debug_ops import find_debug_ops, without_ops
from partir_search.passes.remat import Range, find_segments
from partir_search.plan.front import Front
from partir_search.plan.plan import Plan
from partir_search.plan.planned import collector_paused
from partir_search.plan.search_space import NOTHING_VISITED
from partir_search.planning.front.form import Candidate, find_candidates
from partir_search.planning.front.points import Costed, PointMaker, costed_as
from partir_search.planning.front.recomputed import Forms, Predicted
from partir_search.planning.options import Remat
from partir_search.planning.planner import Planner

MAX_POINTS = 12
LEAST_GAIN = 1e-6  # of a point beside the ends: 1 % of the bytes at 0.01 % of the seconds
MAX_SHARED = 3  # decisions played with none, all and some segments recomputed


@dataclasses.dataclass(frozen=True)
class FrontFinder:
    """Function from a plan to its front.

    Attributes:
      plain: the program without recomputation; None if unknown: the plan's form is the only one.
      remat: the option of `auto_partition`.
      planner_of: function from a form of the program to its planner.
    """

    plain: Module | None
    remat: Remat
    planner_of: Callable[[Module], Planner]

    def __call__(self, plan: Plan) -> Front[Plan]:
        """The front of a plan."""
        with collector_paused():
            return self._found(plan)

    def _found(self, plan: Plan) -> Front[Plan]:
        forms = self._forms(plan)
        chosen = Costed(plan.cost, "the plan", plan.actions, plan.remat, chosen=True)
        costed, predicted = [chosen], list[Predicted]()
        portable: dict[object, Candidate] = {}
        for remat in reversed(forms.ends):
            for found in self._candidates(forms, remat, plan):
                costed.append(Costed(found.cost, found.strategy, found.actions, remat))
                if found.portable:
                    portable.setdefault(found.actions, found)
        if len(forms.ends) > 1:
            for each in list(portable.values())[:MAX_SHARED]:
                ends, some = forms.shared(each.actions, each.strategy, plan.memory_limit)
                costed += ends
                predicted += some
        for point in _thinned([*costed, *predicted], chosen):
            if isinstance(point, Predicted):
                played, _ = forms.played(point.remat, point.actions)
                costed.append(costed_as(played, point.strategy, point.remat))
        front = [p for p in _thinned(costed, chosen) if isinstance(p, Costed)]
        return PointMaker(plan, self.plain, self.planner_of).front(front, len(forms.ends) > 1)

    def _forms(self, plan: Plan) -> Forms:
        ends = [plan.remat]
        if self.plain is not None:
            segments = tuple(find_segments(self.plain)) if self.remat else ()
            ends = [segments] if self.remat is True else [(), segments]
        known = {plan.remat: plan.module}
        return Forms(self.plain or plan.module, ends, known, self.planner_of)

    def _candidates(self, forms: Forms, remat: tuple[Range, ...], plan: Plan) -> list[Candidate]:
        """Decisions on one form; the plan's alone if a schedule decided all."""
        planner = forms.planner(remat)
        if plan.space is None:
            found = [Candidate(plan.cost, "the plan", plan.actions, True)]
        else:
            debugging = find_debug_ops(planner.module, planner.graph.rules)
            if debugging:
                planner = self.planner_of(without_ops(planner.module, debugging))
            visited = plan.searches[-1].visited if plan.searches else NOTHING_VISITED
            found = find_candidates(planner, plan.space, visited, plan.actions)
            if not debugging:
                return found
        played = [forms.played(remat, c.actions)[0] for c in found]
        return [
            dataclasses.replace(c, cost=p.cost, actions=p.actions)
            for c, p in zip(found, played, strict=True)
        ]


def _thinned(points: Sequence[Costed | Predicted], chosen: Costed) -> list[Costed | Predicted]:
    """Nondominated points, a few of them; the chosen one stays if nondominated."""
    front = nondominated(points, _figures)
    keep = [p for p in front if p is chosen]
    return spread(front, _figures, MAX_POINTS, LEAST_GAIN, keep)


def _figures(point: Costed | Predicted) -> tuple[float, float]:
    return point.seconds, point.peak_bytes
