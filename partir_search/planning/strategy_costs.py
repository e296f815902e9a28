"""Costs of known strategies on a folded program, kept for the tables beside a plan."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from partir_search.mcts.game import Move
from partir_search.planning.game import PlanningGame
from partir_search.propagation.actions import Action
from partir_search.simulator.cost import Cost


class StrategyCosts:
    """Costs of known strategies of one program on one mesh, each computed once."""

    def __init__(self) -> None:
        self._found: dict[Hashable, dict[str, Cost]] = {}

    def __call__(
        self,
        game: PlanningGame,
        known: Sequence[tuple[str, Sequence[Move]]],
        before: Sequence[Action],
        exclude: Sequence[str],
    ) -> dict[str, Cost]:
        """Cost of each strategy, by name.

        Args:
          game: a game on the folded program.
          known: name and moves of each strategy on the game's axes.
          before: actions applied before the game starts.
          exclude: globs of arguments excluded from moves.
        """
        key = tuple(game.axes), tuple(before), tuple(exclude)
        if key not in self._found:
            self._found[key] = {name: game.costed(moves)[1] for name, moves in known}
        return self._found[key]
