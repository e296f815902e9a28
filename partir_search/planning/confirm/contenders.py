"""Plans beside a search's plan that a compiler may find better: near it by the simulator."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from partir_search.mcts.game import Move
from partir_search.passes.debug_ops import find_debug_ops, without_ops
from partir_search.plan.plan import Plan
from partir_search.plan.planned import Planned, SearchReport
from partir_search.plan.search_space import Visited
from partir_search.planning.front.visited import WITHIN, alike, moves_in_words, unlike
from partir_search.planning.game import PlanningGame
from partir_search.planning.memory_fit import renamed_for
from partir_search.planning.planner import Planner
from partir_search.planning.planner_maker import PlannerMaker
from partir_search.propagation.actions import Action
from partir_search.propagation.apply import apply_compatible
from partir_search.propagation.state import State
from partir_search.simulator.cost import Cost
from partir_search.strategies.catalogue import named_strategies

MAX_KNOWN = 5  # known strategies among the contenders
EXAMINED = 2  # candidates of folded cost per contender, evaluated on the whole program


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Contender:
    """Decisions near those of a plan, on the plan's form of the program.

    Attributes:
      name: known strategy, or moves of the search.
      actions: decisions, in replay order.
      cost: simulated cost of a step on one device, of the whole program.
      folded: the same of the folded program.
      known: True for a known strategy.
    """

    name: str
    actions: tuple[Action, ...]
    cost: Cost
    folded: Cost
    known: bool


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class _Path:
    name: str
    moves: tuple[Move, ...]
    cost: Cost
    known: bool


@dataclasses.dataclass(frozen=True)
class ContenderFinder:
    """Function from a search's plan to contenders, and to their plans.

    Attributes:
      plan: the search's plan.
      planner_of: function from a form of the program to its planner.
    """

    plan: Plan
    planner_of: PlannerMaker

    def find(self, planner: Planner, count: int) -> list[Contender]:
        """At most `count` contenders, best first by the simulator.

        Contenders are within 10 % of the plan, and unlike the plan and each other in cost. Known
        strategies are at most `MAX_KNOWN` of them; they are never crowded out by states of the
        search.

        Args:
          planner: of the plan's form of the program.
          count: most contenders.
        """
        plan, space = self.plan, self.plan.space
        if space is None or count < 1:
            return []
        debugging = find_debug_ops(planner.module, planner.graph.rules)
        searched = planner
        if debugging:
            searched = self.planner_of(without_ops(planner.module, debugging))
            searched.goals = planner.goals
        state = State(searched.graph, searched.mesh, memo=searched.memo)
        before, _ = apply_compatible(state, renamed_for(searched.module, space.decided))
        folded, game = searched.game(space.axes, before, space.exclude)
        visited = plan.searches[-1].visited
        if visited.ops != len(searched.module.ops):
            visited = Visited()
        named = named_strategies(searched.mesh, space.axes, game.targets, searched.streams)
        goal = game.goal
        worst = goal(plan.cost).scalar() + WITHIN
        found: list[Contender] = []
        for path in _ranked(game, visited, named, count):
            actions, modes, cost = searched.lifted(folded, game, path.moves, state)
            decided = (*before, *actions, *modes)
            if debugging:
                played = planner.replay_compatible(decided)[0]
                decided, cost = played.actions, played.cost
            if goal(cost).scalar() <= worst and not alike(cost, plan.cost):
                found.append(Contender(path.name, decided, cost, path.cost, path.known))
        found.sort(key=lambda each: (not each.known, goal(each.cost).rank()))
        some = list(unlike(found, lambda each: each.cost))[:count]
        return sorted(some, key=lambda each: goal(each.cost).rank())

    def plan_of(self, contender: Contender, planner: Planner) -> Plan:
        """Plan of a contender, with the reports of the search."""
        given = self.plan
        planned = planner.replay(contender.actions)
        *earlier, last = given.searches
        reports = (*earlier, dataclasses.replace(last, cost=contender.folded))
        return given.in_form(
            _with_reports(planned, given.planned, reports), given.rewrites, given.rewrite_passes
        )


def _ranked(
    game: PlanningGame,
    visited: Visited,
    named: Sequence[tuple[str, Sequence[Move]]],
    count: int,
) -> Iterator[_Path]:
    """Candidates by folded cost, unlike each other: known strategies, then states."""
    known = [_Path(name, tuple(moves), game.costed(moves)[1], True) for name, moves in named]
    known.sort(key=lambda path: game.goal(path.cost).rank())
    states = (
        _Path(moves_in_words([game.describe(m) for m in moves]), moves, cost, False)
        for cost, moves in visited.best
    )
    best = min((game.goal(p.cost) for p in known), default=None)
    if visited.best:
        first = game.goal(visited.best[0][0])
        best = first if best is None else min(best, first)
    if best is None:
        return
    near = (p for p in known if game.goal(p.cost).scalar() <= best.scalar() + WITHIN)
    some = list(unlike(near, lambda path: path.cost))[:MAX_KNOWN]
    both = unlike((*some, *states), lambda path: path.cost)
    for at, path in enumerate(both):
        if at >= EXAMINED * count:
            return
        yield path


def _with_reports(planned: Planned, given: Planned, reports: Sequence[SearchReport]) -> Planned:
    """A plan with the search and the seconds of another."""
    return dataclasses.replace(
        planned,
        reports=tuple(reports),
        seconds=given.seconds,
        searched=given.searched,
    )
