"""Known strategies of a planner's program: costs, actions and plans."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

from partir_search.mcts.game import Move, play, rewind
from partir_search.mcts.goals import scorer
from partir_search.plan.planned import Planned
from partir_search.planning.planner import Planner
from partir_search.planning.spreading import begin
from partir_search.propagation.actions import Action
from partir_search.propagation.state import State
from partir_search.simulator.cost import Cost
from partir_search.strategies.catalogue import named_strategies

Rank = tuple[float, ...]  # of a cost, the least first


class KnownMoves:
    """Known strategies on some axes of a planner's mesh, as moves on the folded program."""

    def __init__(
        self,
        planner: Planner,
        axes: Sequence[str] | None = None,
        before: Sequence[Action] = (),
        exclude: Sequence[str] = (),
    ) -> None:
        """Known strategies of `planner`.

        Args:
          planner: planner of the program.
          axes: names of mesh axes; default: all.
          before: actions applied first.
          exclude: globs of arguments excluded from the strategies.
        """
        axes = planner.names if axes is None else axes
        self._planner, self._before, self._exclude = planner, tuple(before), tuple(exclude)
        self._models, self._game = planner.game(axes, before, exclude)
        found = named_strategies(
            planner.mesh, axes, self._game.targets, planner.streams, planner.stage_axes
        )
        self._moves: dict[str, tuple[Move, ...]] = {name: tuple(m) for name, m in found}

    @functools.cached_property
    def costs(self) -> dict[str, Cost]:
        """Cost of each strategy on the folded program, by name."""
        moves = list(self._moves.items())
        return self._planner.strategy_costs(self._game, moves, self._before, self._exclude)

    def ranked(self) -> list[str]:
        """Names of the strategies by the planner's goals on the folded program, best first."""
        score = scorer(self._planner.goals)
        return sorted(self.costs, key=lambda name: score(self.costs[name]).rank())

    def least(
        self,
        rank: Callable[[Cost], Rank],
        names: Iterable[str] | None = None,
        below: Rank | None = None,
        *,
        monotone: bool = True,
    ) -> tuple[str, Cost] | None:
        """The strategy of the least rank on the folded program, and its cost.

        Args:
          rank: rank of a cost.
          names: strategies to try, likely ones first; default: all.
          below: rank to stay below; None is returned without such a strategy.
          monotone: True if `rank` is monotone in every figure: no cost is then computed of
            strategies whose lower bound ranks too high.
        """
        tried = self._moves if names is None else [n for n in names if n in self._moves]
        found: tuple[str, Cost] | None = None
        for name in tried:
            cost = self._cost_below(name, rank, below, bounded=monotone)
            if cost is not None:
                found, below = (name, cost), rank(cost)
        return found

    def _cost_below(
        self, name: str, rank: Callable[[Cost], Rank], below: Rank | None, *, bounded: bool
    ) -> Cost | None:
        game = self._game
        taken = len(list(play(game, self._moves[name])))
        try:
            if bounded and below is not None and rank(game.least_cost()) >= below:
                return None
            cost = game.cost()
        finally:
            rewind(game, taken)
        return cost if below is None or rank(cost) < below else None

    def actions(self, name: str, state: State) -> list[Action]:
        """Actions of a strategy on the unfolded program, applied to `state`."""
        return self._models.lifter.lift(self._game, self._moves[name], state)

    def planned(self, name: str) -> Planned:
        """Plan of a strategy on the unfolded program."""
        state, actions = self._played(name)
        return self._planner.finish(state, actions)

    def planned_actions(self, name: str) -> list[Action]:
        """Actions of a strategy's plan, with the decisions before the search."""
        return self._played(name)[1]

    def _played(self, name: str) -> tuple[State, list[Action]]:
        planner = self._planner
        state = State(planner.graph, planner.mesh, memo=planner.memo)
        for action in self._before:
            action.apply(state)
        return state, [*self._before, *self.actions(name, state)]


def known_plan(planner: Planner, fixed: Sequence[Action] = ()) -> Planned:
    """Plan of the best known strategy on all axes, after the actions `fixed`.

    The best by costs on the folded program.
    """
    state, actions = begin(planner.graph, planner.mesh, planner.memo, fixed, ())
    known = KnownMoves(planner, before=actions)
    best = known.ranked()[:1]
    actions += known.actions(best[0], state) if best else []
    return planner.finish(state, actions)


def known_actions(
    planner: Planner, fixed: Sequence[Action] = ()
) -> Iterator[tuple[str, list[Action]]]:
    """(name, actions) of the known strategies on all axes, on the unfolded program.

    Args:
      fixed: the user's shardings, applied first.
    """
    _, before = begin(planner.graph, planner.mesh, planner.memo, fixed, ())
    known = KnownMoves(planner, before=before)
    for name in known.costs:
        yield name, known.planned_actions(name)
