"""Known strategies of a planner's program: costs, actions and plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from partir_search.mcts.game import Move
from partir_search.mcts.goals import scorer
from partir_search.plan.planned import Planned
from partir_search.planning.planner import Planner
from partir_search.planning.spreading import begin
from partir_search.planning.unfold import lift_to_module
from partir_search.propagation.actions import Action
from partir_search.propagation.state import State
from partir_search.simulator.cost import Cost
from partir_search.strategies.catalogue import named_strategies


class KnownMoves:
    """Known strategies on some axes of a planner's mesh, as moves on the folded program.

    Attributes:
      costs: cost of each strategy on the folded program, by name.
    """

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
        self._planner, self._before = planner, tuple(before)
        self._folded, self._game = planner.game(axes, before, exclude)
        found = named_strategies(
            planner.mesh, axes, self._game.targets, planner.streams, planner.stage_axes
        )
        self._moves: dict[str, tuple[Move, ...]] = {name: tuple(m) for name, m in found}
        self.costs = planner.strategy_costs(self._game, found, before, exclude)

    def ranked(self) -> list[str]:
        """Names of the strategies by the planner's goals on the folded program, best first."""
        score = scorer(self._planner.goals)
        return sorted(self.costs, key=lambda name: score(self.costs[name]).rank())

    def actions(self, name: str, state: State) -> list[Action]:
        """Actions of a strategy on the unfolded program, applied to `state`."""
        return lift_to_module(
            self._folded, self._game, self._game.decisions(self._moves[name]), state
        )

    def planned(self, name: str) -> Planned:
        """Plan of a strategy on the unfolded program."""
        planner = self._planner
        state = State(planner.graph, planner.mesh, memo=planner.memo)
        for action in self._before:
            action.apply(state)
        return planner.finish(state, [*self._before, *self.actions(name, state)])


def known_costs(planner: Planner) -> list[tuple[str, Cost]]:
    """(name, cost) of the known strategies on all axes, on the folded program."""
    return list(KnownMoves(planner).costs.items())


def known_plan(planner: Planner, fixed: Sequence[Action] = ()) -> Planned:
    """Plan of the best known strategy on all axes, after the actions `fixed`.

    The best by costs on the folded program.
    """
    state, actions = begin(planner.graph, planner.mesh, planner.memo, fixed, ())
    known = KnownMoves(planner, before=actions)
    best = known.ranked()[:1]
    actions += known.actions(best[0], state) if best else []
    return planner.finish(state, actions)


def known_actions(planner: Planner) -> Iterator[tuple[str, list[Action]]]:
    """(name, actions) of the known strategies on all axes, on the unfolded program."""
    known = KnownMoves(planner)
    for name in known.costs:
        yield name, known.actions(name, State(planner.graph, planner.mesh, memo=planner.memo))
