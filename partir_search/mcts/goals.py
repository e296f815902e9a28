"""Goals of a search, in order: a limit to keep, then something to minimise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from partir_search.mcts.game import Score

C = TypeVar("C", contravariant=True)


class Goal(Protocol[C]):
    """Something asked of a cost."""

    def excess(self, cost: C) -> float:
        """Log of how many times a limit is exceeded; 0 for goals without one."""

    def objective(self, cost: C) -> float:
        """What to make small; 0 for goals that only limit."""


class _Sized(Protocol):
    @property
    def peak_bytes(self) -> float: ...


class _Timed(Protocol):
    @property
    def seconds(self) -> float: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Fit:
    """Peak memory within `bytes`."""

    bytes: float

    def excess(self, cost: _Sized) -> float:
        return max(0.0, math.log(max(cost.peak_bytes, 1.0) / self.bytes))

    def objective(self, cost: _Sized) -> float:
        return 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Fastest:
    """Fewest seconds per step."""

    def excess(self, cost: _Timed) -> float:
        return 0.0

    def objective(self, cost: _Timed) -> float:
        return cost.seconds


def scorer(goals: Sequence[Goal[C]]) -> Callable[[C], Score]:
    """Goals as one score: all limits first, then the objectives' sum."""

    def score(cost: C) -> Score:
        return Score(sum(g.excess(cost) for g in goals), sum(g.objective(cost) for g in goals))

    return score
