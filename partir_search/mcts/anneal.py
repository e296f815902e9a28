"""Simulated annealing on the move list of the best answer: order matters, so moves may move."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from partir_search.mcts.game import Game, Move, Record, rewind

HOT, COLD = 0.03, 0.001  # temperatures in log cost: 3 % and 0.1 % worse answers are accepted
ROUNDS = 3  # times that the temperature starts again, from the best answer then known

REHEAT = 2  # looks at known states that double the temperature: a way out of a small basin
HOTTEST = 32.0  # doublings at most: everything is accepted long before
STERNER = 4.0  # growth of the penalty, round by round, while no answer keeps the limits
SETTLED = 0.002  # in log cost: a round that gains less, after others that gained more, is the last


def anneal(game: Game, record: Record, rng: random.Random) -> bool:
    """Spends the rest of the record's budget; the game returns to its state.

    Returns:
      Whether it ended before that, as little was to be gained any more: rounds before had found
      what is better, and a whole one no longer did though it met new states. (Where nothing
      better was found at all, the search may as well be stuck.)
    """
    played: list[Move] = []
    start, given = record.used, record.best.score
    for turn in range(ROUNDS):
        if record.best.score.excess > 0:
            record.penalty *= STERNER
        current = list(record.best.path)
        first = score = record.best.score
        begin, stop = record.used, start + (1.0 - start) * (turn + 1) / ROUNDS
        stale = 0  # looks since the last state that was new
        while record.used < stop:
            share = (record.used - begin) / (stop - begin)
            temperature = HOT * (COLD / HOT) ** share
            wanted = _propose(game, rng, current, played)
            taken = _replay(game, played, wanted)
            stale = stale + 1 if record.knows(game.key()) else 0
            temperature *= 2.0 ** min(stale / REHEAT, HOTTEST)
            # Metropolis, drawn first: what is worse than the draw allows need not be worked out.
            allowed = record.scalar(score) - temperature * math.log(1.0 - rng.random())
            new = record.look(taken, allowed)
            if record.scalar(new) <= allowed:
                current, score = list(taken), new
        best = record.best.score
        before = record.scalar(given) - record.scalar(first)
        now = record.scalar(first) - record.scalar(best)
        settled = before >= SETTLED > now and best.excess == 0
        if settled and record.novel and not record.spent:
            break
    rewind(game, len(played))
    return not record.spent


def _propose(
    game: Game, rng: random.Random, current: Sequence[Move], played: list[Move]
) -> list[Move]:
    """A neighbour of a move list: insert, drop, replace or move one.

    A short list is mostly what a known strategy consists of, all of it needed: it rather grows.
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


def _replay(game: Game, played: list[Move], wanted: Sequence[Move]) -> list[Move]:
    """Brings the game from `played` to `wanted`, keeping the common prefix.

    `played` is updated to what really was played: moves without effect fall out.
    """
    same = 0
    while same < min(len(played), len(wanted)) and played[same] == wanted[same]:
        same += 1
    rewind(game, len(played) - same)
    del played[same:]
    for move in wanted[same:]:
        if game.step(move):
            played.append(move)
    return list(played)
