"""Exhaustive enumeration of small spaces: the answer is proven, and regret can be measured."""

from __future__ import annotations

from collections.abc import Hashable

from partir_search.mcts.game import Game, Move, Record


def enumerate_states(game: Game, record: Record, limit: int) -> bool:
    """Looks at every state reachable from here; False (early) if there are more than `limit`.

    A space whose first level alone does not fit is given up at once.
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
            fits = True
            if key not in seen:
                seen.add(key)
                found.append((*path, move))
                fits = len(seen) <= limit and visit((*path, move))
            game.undo()
            if not fits:
                return False
        return True

    if not visit(()):
        return False
    for path in found:
        for move in path:
            game.step(move)
        record.look(path)
        for _ in path:
            game.undo()
    return True
