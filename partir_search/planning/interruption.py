"""Interruption of a search by ctrl-C, with a note on the progress."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence

from partir_search.mcts.game import Move, Record
from partir_search.mcts.search import Result, search
from partir_search.planning.game import PlanningGame


def search_noted(
    game: PlanningGame,
    episodes: int,
    seed: int,
    starts: Sequence[Sequence[Move]],
    progress: Callable[[Record], None] | None,
    *,
    settled: bool = False,
) -> Result:
    """Runs `mcts.search`; a KeyboardInterrupt is raised with a note on the best strategy found."""
    last: collections.deque[Record] = collections.deque(maxlen=1)

    def watch(record: Record) -> None:
        last.append(record)
        if progress is not None:
            progress(record)

    try:
        return search(
            game, episodes=episodes, seed=seed, starts=starts, settled=settled, progress=watch
        )
    except KeyboardInterrupt as stop:
        for record in last:
            best = record.best.score
            fits = "" if best.excess <= 0 else ", which exceeds the limits"
            stop.add_note(
                f"the search was stopped after {record.episodes} of {episodes} strategies; the best"
                f" so far has the objective {best.objective:.4g} (seconds, by default){fits}."
                f" episodes={max(record.episodes, 1)} ends a search about there"
            )
        raise
