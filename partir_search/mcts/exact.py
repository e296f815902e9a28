"""Exhaustive search of small spaces: enumeration, and best-first search.

The best answer of an enumerated space is proven optimal; regret is measured against it.
"""

from __future__ import annotations

from collections.abc import Hashable

from partir_search.mcts.game import Game, Move, Record, play, rewind


def enumerate_states(game: Game, record: Record, limit: int) -> bool:
    """Evaluates every state reachable from the current one, if there are at most `limit`.

    A game with more than `limit` / 4 moves in the current state is not enumerated.

    Returns:
      True if the space was enumerated; False, with nothing evaluated, if the space is larger.
    """
    if len(game.moves()) > limit // 4:
        return False
    seen: set[Hashable] = {game.key()}
    found: list[tuple[Move, ...]] = [()]

    def visit(path: tuple[Move, ...]) -> bool:
        for move in game.moves():
            if not game.step(move):
                continue
            key = game.key()
            within_limit = True
            if key not in seen:
                seen.add(key)
                found.append((*path, move))
                within_limit = len(seen) <= limit and visit((*path, move))
            game.undo()
            if not within_limit:
                return False
        return True

    if not visit(()):
        return False
    for path in found:
        for move in path:
            game.step(move)
        record.evaluate(path)
        for _ in path:
            game.undo()
    return True


def best_first(game: Game, record: Record) -> None:
    """Evaluates all neighbours of the best state, then of the next best, until no episode is left.

    For spaces in which random moves mostly lead to known states. Evaluations of known states are
    not limited here.
    """
    expanded: set[Hashable] = set()
    while record.episodes < record.limit:
        frontier = [key for key in record.paths if key not in expanded]
        if not frontier:
            return
        best = min(frontier, key=lambda key: record.scalar(record.scores[key]))
        expanded.add(best)
        path = list(play(game, record.paths[best]))
        for move in list(game.moves()):
            if record.episodes >= record.limit:
                break
            if game.step(move):
                record.evaluate([*path, move])
                game.undo()
        rewind(game, len(path))
