"""Interface of a searchable game, and the record of the states that a search has evaluated.

The engine knows no jax and no IR: a game is a state with moves, undo, a key and a score.
"""

from __future__ import annotations

import dataclasses
import math
import random
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Protocol

Move = Hashable

MAX_EVALUATIONS_PER_EPISODE = 4  # ends a search that mostly meets known states
PENALTY_EXPONENT = 2.0  # exceeding a limit x times costs as much as a slow-down by x^exponent


@dataclasses.dataclass(frozen=True, slots=True)
class Score:
    """Score of an answer; lower is better.

    Any answer within all limits ranks before any answer beyond one. Answers of the same group rank
    by `scalar`.

    Attributes:
      excess: natural log of the ratio of a figure to its limit, at least 0, summed over limits.
      objective: quantity to minimize, positive, e.g. seconds.
    """

    excess: float
    objective: float

    def scalar(self, penalty: float = PENALTY_EXPONENT) -> float:
        """Cost as one number: log of the objective, plus `penalty` times the excess."""
        return math.log(max(self.objective, 1e-300)) + penalty * self.excess

    def __lt__(self, other: Score) -> bool:
        return self.rank() < other.rank()

    def rank(self) -> tuple[bool, float]:
        """Sort key: answers within the limits first."""
        return self.excess > 0, self.scalar()


class Game(Protocol):
    """Single-player game whose every state is a valid answer: stopping is always legal."""

    def moves(self) -> Sequence[Move]:
        """Legal moves of the current state, in a deterministic order."""

    def draw(self, rng: random.Random) -> Move | None:
        """Random legal move of the current state; None if no move is legal."""

    def step(self, move: Move) -> bool:
        """Plays a move; returns False, with no change, for an illegal or ineffective move."""

    def undo(self) -> None:
        """Takes back the last successful `step`."""

    def key(self) -> Hashable:
        """Identity of the current state, equal for all paths that lead to the state."""

    def score(self) -> Score:
        """Score of the current state."""

    def bound(self) -> Score | None:
        """Lower bound of the score, cheaper to compute than the score; None if unknown."""


@dataclasses.dataclass(frozen=True, slots=True)
class Elite:
    """One of the best answers, with the moves that lead to the answer."""

    score: Score
    path: tuple[Move, ...]


_FORMER_NAMES = {
    "look": "evaluate",
    "looks": "evaluations",
    "spent": "exhausted",
    "novel": "finding_new",
}


class Record:
    """Scores of the states that a search has evaluated, the best answers, and the budget.

    Attributes:
      limit: most distinct states to evaluate.
      episodes: distinct states evaluated.
      evaluations: calls of `evaluate`, of known states too.
      scores: by state key.
      bounds: by state key, lower bounds of scores as far as computed; None if unknown.
      paths: by key of a scored state, the moves that led to the state first.
      elites: by state key, the best answers; pruned to `max_elites` from time to time.
      history: (episodes, score) at each improvement.
      worst: highest scalar cost of a scored state.
      penalty: factor on the excess in `scalar`; raised while no answer keeps the limits.
    """

    def __init__(
        self,
        game: Game,
        *,
        episodes: int,
        elites: int = 10,
        progress: Callable[[Record], None] | None = None,
    ) -> None:
        self.game, self.limit, self.max_elites = game, episodes, elites
        self.episodes = self.evaluations = 0
        self.penalty = PENALTY_EXPONENT
        self.scores: dict[Hashable, Score] = {}
        self.bounds: dict[Hashable, Score | None] = {}
        self.paths: dict[Hashable, tuple[Move, ...]] = {}
        self.elites: dict[Hashable, Elite] = {}
        self.history: list[tuple[int, Score]] = []
        self.worst = -math.inf
        self._progress = progress

    def __getattr__(self, name: str) -> Any:
        """Deprecated names, kept for one version, as `progress` functions receive the record."""
        if name not in _FORMER_NAMES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        new = _FORMER_NAMES[name]
        warnings.warn(f"Record.{name} is now Record.{new}", DeprecationWarning, stacklevel=2)
        return getattr(self, new)

    @property
    def used(self) -> float:
        """Used fraction of the budget, by episodes or by evaluations, the larger of both."""
        evaluations = self.evaluations / (MAX_EVALUATIONS_PER_EPISODE * self.limit)
        return max(self.episodes / self.limit, evaluations)

    @property
    def exhausted(self) -> bool:
        """True if the whole budget is used."""
        return self.used >= 1.0

    @property
    def finding_new(self) -> bool:
        """True if episodes use more of the budget than evaluations do: most states are new."""
        return self.evaluations < MAX_EVALUATIONS_PER_EPISODE * self.episodes

    def scalar(self, score: Score) -> float:
        """Scalar cost of a score under the record's penalty."""
        return score.scalar(self.penalty)

    def knows(self, key: Hashable) -> bool:
        """Returns True for a state that was evaluated before."""
        return key in self.scores or key in self.bounds

    def evaluate(self, path: Sequence[Move], allowed: float = math.inf) -> Score:
        """Scores the game's current state; a new state takes an episode.

        Args:
          path: moves that led to the state.
          allowed: highest scalar cost of interest to the caller. For a state whose lower bound is
            above, the bound is returned instead of the score.
        """
        self.evaluations += 1
        key = self.game.key()
        score = self.scores.get(key)
        if score is None:
            self.episodes += not self.knows(key)
            score = self._bound(key, allowed) or self._score(key, tuple(path))
        if self._progress:
            self._progress(self)
        return score

    def _bound(self, key: Hashable, allowed: float) -> Score | None:
        """Lower bound of the current state's score, if the bound is above `allowed`, else None."""
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
        if len(self.elites) > 4 * self.max_elites:  # sorting at every new state costs too much
            ranked = sorted(self.elites.items(), key=lambda item: item[1].score.rank())
            self.elites = dict(ranked[: self.max_elites])

    @property
    def best(self) -> Elite:
        """Best answer."""
        return min(self.elites.values(), key=lambda e: e.score.rank())

    def ranked(self) -> list[Elite]:
        """At most `max_elites` answers, best first."""
        return sorted(self.elites.values(), key=lambda e: e.score.rank())[: self.max_elites]

    def reward(self, scalar: float) -> float:
        """Reward in [0, 1] of a scalar cost: 0 for the worst of the record, 1 for the best."""
        low = self.best.score.scalar()
        return 1.0 if self.worst <= low else (self.worst - scalar) / (self.worst - low)


def play(game: Game, path: Sequence[Move]) -> Iterator[Move]:
    """Plays moves from the current state; yields each move that has an effect."""
    for move in path:
        if game.step(move):
            yield move


def rewind(game: Game, depth: int) -> None:
    """Takes back the last `depth` moves."""
    for _ in range(depth):
        game.undo()
