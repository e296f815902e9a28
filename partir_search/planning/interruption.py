"""Interruption of a search by ctrl-C: a note on the progress, and the best answers so far."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Hashable, Sequence

from partir_search.mcts.game import Move, Record, play, rewind
from partir_search.mcts.search import Result, Settings, search
from partir_search.planning.exact_answer import EPISODES_PER_START
from partir_search.planning.game import PlanningGame

HOPELESS = 0.05  # of another form's plan, above which a search of a form does not gain enough

Path = tuple[Move, ...]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class SearchJournal:
    """Best answers of the searches of one planning, from which a stopped planning is completed.

    Moves name parts of a folded program: a journal serves another planning of the same call, with
    a program and a fold made anew, as ctrl-C may end any update of the first ones halfway.

    Attributes:
      paths: by search, the moves of the best answers, best first; none if stopped before.
      completes: True for a planning that searches no further: each search has one episode, and
        starts from the known strategies and `paths`.
    """

    paths: dict[Hashable, list[Path]] = dataclasses.field(default_factory=dict)
    completes: bool = False

    def begin(self, search: Hashable) -> list[Path]:
        """Answers known of a search; notes that the search has begun."""
        return self.paths.setdefault(search, [])

    def completing(self) -> SearchJournal:
        """A copy for the planning that completes this one."""
        return SearchJournal({k: [*paths] for k, paths in self.paths.items()}, completes=True)


class FarBehind(Exception):
    """The starts of a search are far behind the plan of another form of the program."""


def check_starts(game: PlanningGame, starts: Sequence[Sequence[Move]], episodes: int = 0) -> None:
    """Raises `FarBehind` if all starts are far behind `game.beat`.

    The last starts come first, as answers for another form follow known strategies. No cost is
    computed of a start whose lower bound is far behind.

    Args:
      episodes: of the search; nothing is raised if there are enough for exact steps, which add
        starts.
    """
    if game.beat is None or not starts or episodes >= EPISODES_PER_START:
        return
    for path in reversed(starts):
        taken = len(list(play(game, path)))
        far = game.far_behind(game.bound(), HOPELESS) or game.far_behind(game.score(), HOPELESS)
        rewind(game, taken)
        if not far:
            return
    raise FarBehind


def search_noted(
    game: PlanningGame,
    episodes: int,
    seed: int,
    starts: Sequence[Sequence[Move]],
    progress: Callable[[Record], None] | None,
    *,
    settled: bool = False,
    found: list[Path] | None = None,
    completes: bool = False,
) -> Result:
    """Runs `mcts.search`; a KeyboardInterrupt is raised with a note on the best strategy found.

    Raises `FarBehind` if all starts are far behind the plan of another form of the program.

    Args:
      found: receives the moves of the best answers, of an interrupted search too.
      completes: True for the starts and one more strategy, whatever the size of the space.
    """
    check_starts(game, starts)
    settings = Settings(exact_states=0) if completes else Settings()
    episodes = 1 if completes else episodes
    last: collections.deque[Record] = collections.deque(maxlen=1)

    def watch(record: Record) -> None:
        last.append(record)
        if progress is not None:
            progress(record)

    try:
        return search(
            game,
            episodes=episodes,
            seed=seed,
            starts=starts,
            settled=settled,
            settings=settings,
            progress=watch,
        )
    except KeyboardInterrupt as stop:
        for record in last:
            best = record.best.score
            fits = "" if best.excess <= 0 else ", which exceeds the limits"
            stop.add_note(
                f"the search was stopped after {record.episodes} of {episodes} strategies; the best"
                f" so far has the objective {best.objective:.4g} (seconds, by default){fits}"
            )
        raise
    finally:
        if found is not None:
            found += [answer.path for record in last for answer in record.ranked()]
