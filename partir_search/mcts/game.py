"""Interface of a game that can be searched, and the record of the states that a search has seen.

The engine knows no jax and no IR: a game is a state with moves, undo, a key and a cost. An answer
that keeps all limits is better than any that does not (`Score`).
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Protocol

Move = Hashable

LOOKS = 4  # looks per episode after which a search ends though it finds little that is new
PENALTY = 2.0  # exceeding a limit by x costs a search as much as a slow-down by x^PENALTY


@dataclasses.dataclass(frozen=True, slots=True)
class Score:
    """Lower is better: first what keeps the limits, by objective; then the rest, by `scalar`.

    Attributes:
      excess: log of how many times a limit is exceeded, at least 0.
      objective: positive, e.g. seconds.
    """

    excess: float
    objective: float

    def scalar(self, penalty: float = PENALTY) -> float:
        """One number: exceeding a limit by x costs as much as a slow-down by x^penalty."""
        return math.log(max(self.objective, 1e-300)) + penalty * self.excess

    def __lt__(self, other: Score) -> bool:
        return self.rank() < other.rank()

    def rank(self) -> tuple[bool, float]:
        """Sort key."""
        return self.excess > 0, self.scalar()


class Game(Protocol):
    """A single-player game whose every state is a valid answer (stopping is always legal)."""

    def moves(self) -> Sequence[Move]:
        """Legal moves of the current state, in a deterministic order."""

    def draw(self, rng: random.Random) -> Move | None:
        """A legal move of the current state by chance; None if there is none."""

    def step(self, move: Move) -> bool:
        """Plays a move; False (and no change) if it is illegal or changes nothing."""

    def undo(self) -> None:
        """Takes back the last successful `step`."""

    def key(self) -> Hashable:
        """Equal for equal states, however they were reached."""

    def score(self) -> Score:
        """The cost of stopping here."""

    def bound(self) -> Score | None:
        """Lower bound of the score, found with less work than the score; None if not known."""


@dataclasses.dataclass(frozen=True, slots=True)
class Elite:
    """One of the best answers seen."""

    score: Score
    path: tuple[Move, ...]


class Record:
    """Scores by state key, the best answers, and the budget.

    Attributes:
      episodes: distinct states looked at; `looks` counts states seen before as well.
      scores: by state key; `bounds` of states of which it was enough to know that they are worse.
      penalty: weight of exceeded limits, raised while nothing fits.
    """

    def __init__(
        self,
        game: Game,
        *,
        episodes: int,
        elites: int = 10,
        progress: Callable[[Record], None] | None = None,
    ) -> None:
        self.game, self.limit, self.keep = game, episodes, elites
        self.episodes = self.looks = 0
        self.penalty = PENALTY
        self.scores: dict[Hashable, Score] = {}
        self.bounds: dict[Hashable, Score | None] = {}
        self.paths: dict[Hashable, tuple[Move, ...]] = {}
        self.elites: dict[Hashable, Elite] = {}
        self.history: list[tuple[int, Score]] = []
        self.worst = -math.inf
        self._progress = progress

    @property
    def used(self) -> float:
        """Share of the budget that is spent."""
        return max(self.episodes / self.limit, self.looks / (LOOKS * self.limit))

    @property
    def spent(self) -> bool:
        return self.used >= 1.0

    @property
    def novel(self) -> bool:
        """True while looks still find new states, so that the budget ends with them."""
        return self.looks < LOOKS * self.episodes

    def scalar(self, score: Score) -> float:
        return score.scalar(self.penalty)

    def knows(self, key: Hashable) -> bool:
        """Tells whether a state was looked at."""
        return key in self.scores or key in self.bounds

    def look(self, path: Sequence[Move], allowed: float = math.inf) -> Score:
        """The score of the game's current state, reached by `path`. A new one costs an episode.

        Args:
          allowed: scalars above it are all the same to the caller: the score may be a bound then.
        """
        self.looks += 1
        key = self.game.key()
        score = self.scores.get(key)
        if score is None:
            self.episodes += not self.knows(key)
            score = self._bound(key, allowed) or self._score(key, tuple(path))
        if self._progress:
            self._progress(self)
        return score

    def _bound(self, key: Hashable, allowed: float) -> Score | None:
        """A bound of the current state's score, if that is more than allowed."""
        if allowed == math.inf:
            return None
        if key not in self.bounds:
            self.bounds[key] = self.game.bound()
        bound = self.bounds[key]
        return bound if bound and self.scalar(bound) > allowed else None

    def _score(self, key: Hashable, path: tuple[Move, ...]) -> Score:
        score = self.scores[key] = self.game.score()
        self.paths[key] = path
        self.worst = max(self.worst, score.scalar())
        self._remember(key, score, path)
        return score

    def _remember(self, key: Hashable, score: Score, path: tuple[Move, ...]) -> None:
        best = self.best.score if self.elites else None
        if best is None or score < best:
            self.history.append((self.episodes, score))
        self.elites[key] = Elite(score, path)
        if len(self.elites) > 4 * self.keep:
            ranked = sorted(self.elites.items(), key=lambda item: item[1].score.rank())
            self.elites = dict(ranked[: self.keep])

    @property
    def best(self) -> Elite:
        return min(self.elites.values(), key=lambda e: e.score.rank())

    def ranked(self) -> list[Elite]:
        """The best answers, best first."""
        return sorted(self.elites.values(), key=lambda e: e.score.rank())[: self.keep]

    def reward(self, scalar: float) -> float:
        """Maps a scalar cost to [0, 1] between the worst and the best seen."""
        low = self.best.score.scalar()
        return 1.0 if self.worst <= low else (self.worst - scalar) / (self.worst - low)


def play(game: Game, path: Sequence[Move]) -> Iterator[Move]:
    """Plays `path` from the current state; yields the moves that had an effect."""
    for move in path:
        if game.step(move):
            yield move


def rewind(game: Game, depth: int) -> None:
    for _ in range(depth):
        game.undo()
