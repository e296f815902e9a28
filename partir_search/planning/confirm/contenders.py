"""Further plans to compile: those with simulated seconds near the search's plan."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

from partir_search.mcts.game import Move
from partir_search.mcts.goals import scorer
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
FOLDED_BYTES = 1.1  # most that a folded peak is too high, as a factor
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
    """Contenders of a search's plan, and their plans.

    Attributes:
      plan: the search's plan.
      planner_of: function from a form of the program to its planner.
    """

    plan: Plan
    planner_of: PlannerMaker

    @functools.cached_property
    def planner(self) -> Planner:
        """Planner of the plan's form of the program."""
        return self.planner_of(self.plan.module)

    def near(self, count: int) -> list[Contender]:
        """At most `count` contenders within 10 % of the plan, best first by the simulator.

        They are unlike the plan and each other in cost. Known strategies are at most `MAX_KNOWN` of
        them, and are never crowded out by states of the search.
        """
        goal, own = scorer(self.planner.goals), self.plan.cost

        def chosen(paths: Sequence[_Path]) -> Iterator[_Path]:
            best = min((goal(path.cost).scalar() for path in paths), default=0.0)
            close = [path for path in paths if goal(path.cost).scalar() <= best + WITHIN]
            known = unlike((path for path in close if path.known), lambda path: path.cost)
            states = (path for path in close if not path.known)
            return unlike((*itertools.islice(known, MAX_KNOWN), *states), lambda path: path.cost)

        found = [
            each
            for each in self._lifted(chosen, count)
            if goal(each.cost).scalar() <= goal(own).scalar() + WITHIN and not alike(each.cost, own)
        ]
        found.sort(key=lambda each: not each.known)
        some = list(unlike(found, lambda each: each.cost))[:count]
        return sorted(some, key=lambda each: goal(each.cost).rank())

    def smaller(self, count: int, peak_bytes: float) -> list[Contender]:
        """At most `count` contenders with a simulated peak of at most `peak_bytes`, best first."""
        goal = scorer(self.planner.goals)

        def chosen(paths: Sequence[_Path]) -> Iterator[_Path]:
            small = (path for path in paths if path.cost.peak_bytes <= FOLDED_BYTES * peak_bytes)
            return unlike(small, lambda path: path.cost)

        found = [e for e in self._lifted(chosen, count) if e.cost.peak_bytes <= peak_bytes]
        found.sort(key=lambda each: goal(each.cost).rank())
        return list(unlike(found, lambda each: each.cost))[:count]

    def _lifted(
        self, chosen: Callable[[Sequence[_Path]], Iterator[_Path]], count: int
    ) -> list[Contender]:
        """Contenders by paths on the folded program.

        Args:
          chosen: function from all paths, best first, to those to lift to the whole program.
          count: most contenders; `EXAMINED` paths are lifted for each.
        """
        plan, planner, space = self.plan, self.planner, self.plan.space
        if space is None or not plan.searches or count < 1:
            return []
        debugging = find_debug_ops(planner.module, planner.graph.rules)
        searched = planner
        if debugging:
            searched = self.planner_of(without_ops(planner.module, debugging))
            searched.goals = planner.goals
        state = State(searched.graph, searched.mesh, memo=searched.memo)
        before, _ = apply_compatible(state, renamed_for(searched.module, space.decided))
        models, game = searched.game(space.axes, before, space.exclude)
        paths = _paths(game, searched, plan.searches[-1].visited, space.axes)
        found = []
        for path in itertools.islice(chosen(paths), EXAMINED * count):
            actions, modes, cost = searched.lifted(models, game, path.moves, state)
            decided = (*before, *actions, *modes)
            if debugging:
                played = planner.replay_compatible(decided)[0]
                decided, cost = played.actions, played.cost
            found.append(Contender(path.name, decided, cost, path.cost, path.known))
        return found

    def plan_of(self, contender: Contender) -> Plan:
        """Plan of a contender, with the reports of the search."""
        given, planned = self.plan, self.planner.replay(contender.actions)
        *earlier, last = given.searches
        reports = (*earlier, dataclasses.replace(last, cost=contender.folded))
        return given.in_form(
            _with_reports(planned, given.planned, reports), given.rewrites, given.rewrite_passes
        )


def near_plans(plan: Plan, count: int, planner_of: PlannerMaker) -> list[Plan]:
    """Plans of the contenders of a search's plan, best first by the simulator.

    Args:
      planner_of: function from a form of the program to its planner.
    """
    finder = ContenderFinder(plan, planner_of)
    return [finder.plan_of(each) for each in finder.near(count)]


def _paths(
    game: PlanningGame, planner: Planner, visited: Visited, axes: Sequence[str]
) -> list[_Path]:
    """Known strategies and states of the search, best first by the goals on the folded program."""
    named = named_strategies(planner.mesh, axes, game.targets, planner.streams, planner.stage_axes)
    found = [_Path(name, tuple(moves), game.costed(moves)[1], True) for name, moves in named]
    if visited.ops == len(planner.module.ops):
        for cost, moves in (*visited.best, *visited.states):
            name = moves_in_words([game.describe(m) for m in moves])
            found.append(_Path(name, moves, cost, False))
    return sorted(found, key=lambda path: game.goal(path.cost).rank())


def _with_reports(planned: Planned, given: Planned, reports: Sequence[SearchReport]) -> Planned:
    """A plan with the search and the seconds of another."""
    return dataclasses.replace(
        planned,
        reports=tuple(reports),
        seconds=given.seconds,
        searched=given.searched,
    )
