"""Points of a front, and their plans."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from partir_search.ir.core import Module
from partir_search.messages.wording import amount, duration
from partir_search.passes.remat import Range
from partir_search.plan.front import Front, FrontPoint
from partir_search.plan.plan import Plan
from partir_search.plan.planned import Planned
from partir_search.planning.planner import Planner
from partir_search.planning.stage import Stage
from partir_search.planning.stage_planner import rematerialized
from partir_search.propagation.actions import Action
from partir_search.simulator.cost import Cost


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Costed:
    """Decisions on a form of the program, costed on the whole program.

    Attributes:
      cost: simulated cost per step on one device.
      strategy: origin of the decisions, in words.
      actions: decisions, in replay order.
      remat: segments of the forward pass computed again.
      chosen: True for the plan of which the front is found.
    """

    cost: Cost
    strategy: str
    actions: tuple[Action, ...]
    remat: tuple[Range, ...]
    chosen: bool = False

    @property
    def seconds(self) -> float:
        """Simulated seconds per step."""
        return self.cost.seconds

    @property
    def peak_bytes(self) -> float:
        """Peak bytes on one device."""
        return self.cost.peak_bytes


def costed_as(planned: Planned, strategy: str, remat: tuple[Range, ...]) -> Costed:
    """Cost and decisions of a plan of a form of the program."""
    return Costed(planned.cost, strategy, planned.actions, remat)


@dataclasses.dataclass(frozen=True)
class PointMaker:
    """Maker of the points of a plan's front, and of their plans.

    Attributes:
      given: the plan.
      plain: the program without recomputation; None for points in the form of the plan.
      planner_of: function from a form of the program to its planner.
    """

    given: Plan
    plain: Module | None
    planner_of: Callable[[Module], Planner]

    def front(self, points: Sequence[Costed], recomputes: bool) -> Front[Plan]:
        """The front of some points.

        Args:
          points: nondominated, fastest first.
          recomputes: True if points may differ in the segments computed again.
        """
        limit = self.given.memory_limit
        found: list[FrontPoint[Plan]] = []

        def make(point: FrontPoint[Plan]) -> Plan:
            if point.chosen:
                return self.given
            plan = self._plan(point)
            plan.known_front = front.marked(point)
            return plan

        for p in points:
            fits = p.peak_bytes <= limit
            found.append(FrontPoint(p.cost, p.strategy, p.actions, p.remat, fits, p.chosen, make))
        front = Front(tuple(found), limit, self._note(found, recomputes))
        return front

    def _plan(self, point: FrontPoint[Plan]) -> Plan:
        given = self.given
        stage = Stage(given.module, given.rewrites, given.rewrite_passes)
        if self.plain is not None:
            passes = tuple(p for p in stage.passes if p.name != "rematerialize")
            stage = Stage(self.plain, dataclasses.replace(given.rewrites, remat=()), passes)
            stage = rematerialized(stage, point.remat)
        planned = self.planner_of(stage.module).replay(point.actions)
        planned = dataclasses.replace(planned, saved_space=given.space)
        return given.in_form(planned, stage.rewrites, stage.passes)

    def _note(self, points: Sequence[FrontPoint[Plan]], recomputes: bool) -> str:
        space, chosen = self.given.space, [p for p in points if p.chosen]
        differ = [f"decisions along {', '.join(space.axes)}"] if space else []
        differ += ["segments computed again"] if recomputes else []
        note = "all tilings are given; " if space is None else ""
        note += f"points differ in {' and '.join(differ)}" if differ else "no choice is left"
        if not chosen:
            cost = self.given.cost
            figures = f"{duration(cost.seconds)}, {amount(cost.peak_bytes, 4)}"
            note += f"; the plan itself ({figures}) is not among them: one is faster and smaller"
        return note
