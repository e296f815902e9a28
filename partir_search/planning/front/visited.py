"""States of a search worth keeping, for a front and for finalists."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from partir_search.mcts.front import nondominated, spread
from partir_search.mcts.game import Move
from partir_search.plan.search_space import Visited
from partir_search.planning.game import PlanningGame
from partir_search.simulator.cost import Cost

MAX_STATES = 16
MAX_BEST = 30  # states kept for finalists
MAX_MOVES_SHOWN = 3  # of a list of moves, in words
WITHIN = math.log(1.1)  # of a finalist's scalar score and the best one
ALIKE_SECONDS, ALIKE_BYTES = 0.005, 0.01  # relative differences below which costs are alike

T = TypeVar("T")


def figures(state: tuple[Cost, object]) -> tuple[float, float]:
    """Seconds and peak bytes of a state."""
    return state[0].seconds, state[0].peak_bytes


def visited_states(
    game: PlanningGame, paths: Mapping[Hashable, tuple[Move, ...]], ops: int
) -> Visited:
    """Nondominated and best states of a search.

    At most `MAX_STATES` nondominated states, spread from fastest to smallest, and at most
    `MAX_BEST` of the best by the game's goal.

    Args:
      game: the game of the search.
      paths: by key of a scored state, the moves that lead to the state.
      ops: number of ops of the unfolded program.
    """
    costs = game.costs
    states = [(costs[key], path) for key, path in paths.items()]  # type: ignore[index]
    ranked = sorted(states, key=lambda state: game.goal(state[0]).rank())
    highest = game.goal(ranked[0][0]).scalar() + WITHIN if ranked else 0.0
    near = (state for state in ranked if game.goal(state[0]).scalar() <= highest)
    return Visited(
        ops,
        tuple(spread(nondominated(states, figures), figures, MAX_STATES)),
        tuple(itertools.islice(unlike(near, lambda state: state[0]), MAX_BEST)),
    )


def unlike(items: Iterable[T], cost: Callable[[T], Cost]) -> Iterator[T]:
    """Items whose costs differ from those of all items before (`alike`)."""
    kept: list[Cost] = []
    for item in items:
        new = cost(item)
        if not any(alike(new, old) for old in kept):
            kept.append(new)
            yield item


def alike(a: Cost, b: Cost) -> bool:
    """True if two costs hardly differ: in seconds by cause, in peak bytes and in bytes sent."""
    seconds = abs(a.compute_seconds - b.compute_seconds)
    seconds += abs(a.collective_seconds - b.collective_seconds)
    sent, other = (sum(c.bytes_by_kind.values()) for c in (a, b))
    return (
        seconds <= ALIKE_SECONDS * b.seconds
        and abs(a.peak_bytes - b.peak_bytes) <= ALIKE_BYTES * b.peak_bytes
        and abs(sent - other) <= ALIKE_BYTES * other
    )


def moves_in_words(moves: Sequence[str]) -> str:
    """Text of a list of moves; the first ones of a long list."""
    more = len(moves) - MAX_MOVES_SHOWN
    words = ", ".join(moves[:MAX_MOVES_SHOWN]) or "nothing tiled"
    return f"{words} and {more} moves more" if more > 0 else words
