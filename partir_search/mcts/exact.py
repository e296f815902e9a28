"""Looking everywhere, which small spaces allow: enumeration, and best-first search.

What is enumerated is proven, and regret can be measured against it.
"""

from __future__ import annotations

from collections.abc import Hashable

from partir_search.mcts.game import Game, Move, Record, play, rewind


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


def best_first(game: Game, record: Record) -> None:
    """Spends the episodes that are left on all neighbours of the best states, then of the next.

    For spaces in which chance keeps finding what is known: the record's looks do not count here.
    """
    expanded: set[Hashable] = set()
    while record.episodes < record.limit:
        waiting = [k for k in record.paths if k not in expanded]
        if not waiting:
            return
        at = min(waiting, key=lambda k: record.scalar(record.scores[k]))
        expanded.add(at)
        path = list(play(game, record.paths[at]))
        for move in list(game.moves()):
            if record.episodes >= record.limit:
                break
            if game.step(move):
                record.look([*path, move])
                game.undo()
        rewind(game, len(path))
