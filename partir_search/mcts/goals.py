"""Goals of a search: limits to keep, and objectives to minimise once they are kept.

A goal is any object with `excess` and `objective`; users write their own as these are written. One
that also has `monotone = True` says that no cost scores better than one that is lower in every
figure: searches then leave out answers of which a part of the cost is too much already.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Generic, Protocol, TypeVar

from partir_search.mcts.game import Score

C = TypeVar("C", contravariant=True)


class Goal(Protocol[C]):
    """Something asked of a cost."""

    def excess(self, cost: C) -> float:
        """Log of how many times a limit is exceeded; 0 for goals without one."""

    def objective(self, cost: C) -> float:
        """Quantity to minimize; 0 for goals that only limit."""


class _Sized(Protocol):
    @property
    def peak_bytes(self) -> float: ...


class _Timed(Protocol):
    @property
    def seconds(self) -> float: ...


class _Sent(Protocol):
    @property
    def bytes_by_axis(self) -> Mapping[str, float]: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Fit:
    """Peak memory within `bytes`."""

    monotone: ClassVar[bool] = True
    bytes: float

    def excess(self, cost: _Sized) -> float:
        if math.isinf(self.bytes):
            return 0.0
        return max(0.0, math.log(max(cost.peak_bytes, 1.0) / self.bytes))

    def objective(self, cost: _Sized) -> float:
        return 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Fastest:
    """Fewest seconds per step."""

    monotone: ClassVar[bool] = True

    def excess(self, cost: _Timed) -> float:
        return 0.0

    def objective(self, cost: _Timed) -> float:
        return cost.seconds


@dataclasses.dataclass(frozen=True, slots=True)
class Spare:
    """Memory left free below `bytes`, where it is worth something: each byte `worth` of the other
    goals' objective (seconds, say), all of it at most `most`.
    """

    monotone: ClassVar[bool] = True
    bytes: float
    worth: float
    most: float

    def excess(self, cost: _Sized) -> float:
        return 0.0

    def objective(self, cost: _Sized) -> float:
        return -min(max(0.0, self.bytes - cost.peak_bytes) * self.worth, self.most)


@dataclasses.dataclass(frozen=True, slots=True)
class FewestBytes:
    """Fewest bytes sent along an axis of the mesh by one device, e.g. one that crosses hosts."""

    monotone: ClassVar[bool] = True
    axis: str

    def excess(self, cost: _Sent) -> float:
        return 0.0

    def objective(self, cost: _Sent) -> float:
        return sum(
            sent
            for axes, sent in cost.bytes_by_axis.items()
            if any(a == self.axis or a.startswith(f"{self.axis}.") for a in axes.split(","))
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Weighted(Generic[C]):
    """Another goal, its objective times `weight`: what one unit of it is worth of the others'.

    `[Fastest(), Weighted(FewestBytes("hosts"), 1e-10)]`: 10 GB less along `hosts` are worth 1 s.
    """

    goal: Goal[C]
    weight: float

    @property
    def monotone(self) -> bool:
        """As the other goal."""
        return self.weight >= 0 and is_monotone(self.goal)

    def excess(self, cost: C) -> float:
        return self.goal.excess(cost)

    def objective(self, cost: C) -> float:
        return self.weight * self.goal.objective(cost)


def is_monotone(goal: Goal[C]) -> bool:
    """Tells whether a goal declares that lower costs never score worse."""
    return bool(getattr(goal, "monotone", False))


@dataclasses.dataclass(frozen=True, slots=True)
class Scorer(Generic[C]):
    """Goals as one score: all limits first, then the objectives' sum."""

    goals: tuple[Goal[C], ...]

    def __call__(self, cost: C) -> Score:
        excess = sum(g.excess(cost) for g in self.goals)
        return Score(excess, sum(g.objective(cost) for g in self.goals))

    @property
    def monotone(self) -> bool:
        """True if lower costs never score worse."""
        return all(map(is_monotone, self.goals))


def scorer(goals: Sequence[Goal[C]]) -> Scorer[C]:
    """The score of goals."""
    return Scorer(tuple(goals))
