"""Goals of a search: limits to keep first, and objectives to minimize within the limits.

A goal is any object with the methods `excess` and `objective`. A goal with `monotone = True`
promises never to score a cost better than a second one that is lower in every figure: a search then
skips an answer as soon as a lower bound of the answer's cost scores too high.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Generic, Protocol, TypeVar

from partir_search.mcts.game import Score

C = TypeVar("C", contravariant=True)


class Goal(Protocol[C]):
    """Limit or objective of a cost of type `C`."""

    def excess(self, cost: C) -> float:
        """Log of the ratio of a figure to its limit, at least 0; 0 for a goal without a limit."""

    def objective(self, cost: C) -> float:
        """Quantity to minimize; 0 for a limit alone."""


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
    """Limit on the peak memory of a device, in bytes."""

    monotone: ClassVar[bool] = True
    bytes: float

    def excess(self, cost: _Sized) -> float:
        if math.isinf(self.bytes):
            return 0.0
        return max(0.0, math.log(max(cost.peak_bytes, 1.0) / self.bytes))

    def objective(self, cost: _Sized) -> float:
        return 0.0


def memory_limit(goals: Iterable[object]) -> float:
    """Bytes per device allowed by goals; infinite without a `Fit` goal."""
    return min((goal.bytes for goal in goals if isinstance(goal, Fit)), default=math.inf)


@dataclasses.dataclass(frozen=True, slots=True)
class Fastest:
    """Objective: seconds per step."""

    monotone: ClassVar[bool] = True

    def excess(self, cost: _Timed) -> float:
        return 0.0

    def objective(self, cost: _Timed) -> float:
        return cost.seconds


@dataclasses.dataclass(frozen=True, slots=True)
class Spare:
    """Objective: memory left free below a limit, traded against the objective of further goals.

    Attributes:
      bytes: limit below which memory counts as free.
      objective_per_byte: worth of a free byte, e.g. in seconds.
      max_reward: largest worth of all free bytes, in units of the objective.
    """

    monotone: ClassVar[bool] = True
    bytes: float
    objective_per_byte: float
    max_reward: float

    def excess(self, cost: _Sized) -> float:
        return 0.0

    def objective(self, cost: _Sized) -> float:
        free = max(0.0, self.bytes - cost.peak_bytes)
        return -min(free * self.objective_per_byte, self.max_reward)


@dataclasses.dataclass(frozen=True, slots=True)
class FewestBytes:
    """Objective: bytes that one device sends along a mesh axis, e.g. an axis that crosses hosts."""

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
    """Goal with the objective of `goal` times `weight`, to add up objectives of several units.

    With `[Fastest(), Weighted(FewestBytes("hosts"), 1e-10)]` sending 10 GB less along `hosts` is
    worth 1 s.
    """

    goal: Goal[C]
    weight: float

    @property
    def monotone(self) -> bool:
        """True if the weighted goal is monotone and the weight is not negative."""
        return self.weight >= 0 and is_monotone(self.goal)

    def excess(self, cost: C) -> float:
        return self.goal.excess(cost)

    def objective(self, cost: C) -> float:
        return self.weight * self.goal.objective(cost)


def is_monotone(goal: Goal[C]) -> bool:
    """Returns True for a goal that declares itself monotone."""
    return bool(getattr(goal, "monotone", False))


@dataclasses.dataclass(frozen=True, slots=True)
class Scorer(Generic[C]):
    """Function from a cost to its `Score`: excesses and objectives are summed over all goals."""

    goals: tuple[Goal[C], ...]

    def __call__(self, cost: C) -> Score:
        excess = sum(g.excess(cost) for g in self.goals)
        return Score(excess, sum(g.objective(cost) for g in self.goals))

    @property
    def monotone(self) -> bool:
        """True if all goals are monotone."""
        return all(map(is_monotone, self.goals))


def scorer(goals: Sequence[Goal[C]]) -> Scorer[C]:
    """Scorer of a sequence of goals."""
    return Scorer(tuple(goals))
