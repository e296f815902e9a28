"""Simulated annealing of the best answer's list of moves, whose order matters."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from partir_search.mcts.game import Game, Move, Record, rewind

# In log cost: answers that are 3 % worse are accepted at first, 0.1 % worse at the end of a round.
INITIAL_TEMPERATURE, FINAL_TEMPERATURE = 0.03, 0.001
ROUNDS = 3  # each cools once, from the best answer known at its start
REPEATS_PER_DOUBLING = 2.0  # known states in a row that double the temperature, to leave a basin
MAX_DOUBLINGS = 32.0  # bounds the temperature; a few doublings accept any answer
PENALTY_GROWTH = 4.0  # factor on the penalty per round while no answer keeps the limits
CONVERGENCE_TOL = 0.002  # gain of a round in log cost, below which annealing has converged


def anneal(game: Game, record: Record, rng: random.Random, *, settled: bool = False) -> bool:
    """Anneals until the record's budget is exhausted or annealing has converged.

    Annealing has converged after a round that gains less than `CONVERGENCE_TOL`, if earlier rounds
    gained more, states are still new and the best answer keeps all limits. A search that gained
    nothing at all may be stuck instead, and goes on.

    Args:
      game: returned to its state.
      record: states evaluated before; annealing starts from the best.
      settled: the best answer is a minimum of another method: annealing has converged after any
        round that gains less than `CONVERGENCE_TOL`.

    Returns:
      True if annealing has converged with budget left.
    """
    played: list[Move] = []
    start, initial = record.used, record.best.score
    for turn in range(ROUNDS):
        if record.best.score.excess > 0:
            record.penalty *= PENALTY_GROWTH
        current = list(record.best.path)
        first = score = record.best.score
        begin, stop = record.used, start + (1.0 - start) * (turn + 1) / ROUNDS
        repeats = 0  # known states since the last new one
        while record.used < stop:
            elapsed = (record.used - begin) / (stop - begin)
            cooling = (FINAL_TEMPERATURE / INITIAL_TEMPERATURE) ** elapsed
            temperature = INITIAL_TEMPERATURE * cooling
            proposed = _propose(game, rng, current, played)
            path = _replay(game, played, proposed)
            repeats = repeats + 1 if record.knows(game.key()) else 0
            temperature *= 2.0 ** min(repeats / REPEATS_PER_DOUBLING, MAX_DOUBLINGS)
            # The Metropolis test draws first: a bound above the draw saves scoring the state.
            allowed = record.scalar(score) - temperature * math.log(1.0 - rng.random())
            new = record.evaluate(path, allowed)
            if record.scalar(new) <= allowed:
                current, score = list(path), new
        best = record.best.score
        gained_before = record.scalar(initial) - record.scalar(first)
        gained = record.scalar(first) - record.scalar(best)
        improved = settled or gained_before >= CONVERGENCE_TOL
        converged = improved and gained < CONVERGENCE_TOL and best.excess == 0
        if converged and record.finding_new and not record.exhausted:
            break
    rewind(game, len(played))
    return not record.exhausted


def _propose(
    game: Game, rng: random.Random, current: Sequence[Move], played: list[Move]
) -> list[Move]:
    """Neighbour of a list of moves: one move inserted, dropped, replaced or moved.

    Inserting is the likelier, the shorter the list is: short lists are mostly known strategies,
    which need each of their moves.
    """
    kinds = {"insert": 2.0 + 4.0 / (1 + len(current)), "drop": 1.0, "replace": 1.0, "move": 2.0}
    (kind,) = rng.choices(list(kinds), list(kinds.values()))
    path = list(current)
    if not path or kind == "insert":
        at = rng.randrange(len(path) + 1)
        _replay(game, played, path[:at])
        if (drawn := game.draw(rng)) is not None:
            path.insert(at, drawn)
        return path
    at = rng.randrange(len(path))
    move = path.pop(at)
    if kind == "replace":
        _replay(game, played, path[:at])
        if (drawn := game.draw(rng)) is not None:
            path.insert(at, drawn)
    elif kind == "move":
        path.insert(rng.randrange(len(path) + 1), move)
    return path


def _replay(game: Game, played: list[Move], target: Sequence[Move]) -> list[Move]:
    """Brings the game from the moves `played` to the moves `target`, keeping the common prefix.

    Updates `played` in place and returns a copy; moves without effect are left out.
    """
    common = 0
    while common < min(len(played), len(target)) and played[common] == target[common]:
        common += 1
    rewind(game, len(played) - common)
    del played[common:]
    for move in target[common:]:
        if game.step(move):
            played.append(move)
    return list(played)
