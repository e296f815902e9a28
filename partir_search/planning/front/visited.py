"""States of a search worth keeping for a front."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from partir_search.mcts.front import nondominated, spread
from partir_search.mcts.game import Move
from partir_search.plan.search_space import Visited
from partir_search.planning.game import PlanningGame
from partir_search.simulator.cost import Cost

MAX_STATES = 16


def figures(state: tuple[Cost, object]) -> tuple[float, float]:
    """Seconds and peak bytes of a state."""
    return state[0].seconds, state[0].peak_bytes


def visited_states(
    game: PlanningGame, paths: Mapping[Hashable, tuple[Move, ...]], ops: int
) -> Visited:
    """Nondominated states of a search, at most `MAX_STATES`, spread from fastest to smallest.

    Args:
      game: the game of the search.
      paths: by key of a scored state, the moves that lead to the state.
      ops: number of ops of the unfolded program.
    """
    costs = game.costs
    states = ((costs[key], path) for key, path in paths.items())  # type: ignore[index]
    return Visited(ops, tuple(spread(nondominated(states, figures), figures, MAX_STATES)))
