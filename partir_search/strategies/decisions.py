"""Elementary decisions on classes of values: tile a dim, or replicate."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from partir_search.propagation.actions import Action, Replicate, Tile, Tiling
from partir_search.propagation.state import State

Axes = tuple[int, ...]  # positions in the mesh, major to minor
Names = tuple[str, ...]


class Decision(abc.ABC):
    """A decision on one class of values along mesh axes.

    Attributes:
      cls: the class, in the graph of the states that the decision is for.
      barrier_classes: classes left undecided by propagation.
    """

    __slots__ = ()
    cls: Any
    axes: Any

    @property
    def barrier_classes(self) -> tuple[int, ...]:
        return ()

    @abc.abstractmethod
    def is_legal_on(self, cls: int, state: State) -> bool:
        """True if `state` admits the decision on a class."""

    @abc.abstractmethod
    def play(self, state: State) -> None:
        """Sets the decision in `state` and propagates; `is_legal(state)` must hold."""

    @abc.abstractmethod
    def action(self, name: str, axis: str, also: Names = (), barriers: Names = ()) -> Action:
        """The decision as an action on the value `name`.

        Args:
          axis: label of `axes`.
          also: further values with the same decision.
          barriers: names for `barrier_classes`.
        """

    @abc.abstractmethod
    def describe(self, name_of: Callable[[int], str], label: Callable[[Axes], str]) -> str:
        """Text of the decision, given names of classes and labels of axes."""

    def is_legal(self, state: State) -> bool:
        """True if `state` admits the decision."""
        return self.is_legal_on(self.cls, state)

    def decide(self, state: State) -> bool:
        """Applies the decision if legal; False if not."""
        legal = self.is_legal(state)
        if legal:
            self.play(state)
        return legal

    def apply(self, targets: object, state: State) -> list[Decision]:
        """Applies the decision as a move; returns the decisions with an effect."""
        return [self] if self.decide(state) else []


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class TileClass(Decision):
    """Tile one dim of a class on axes, or on sub-axes of one axis.

    Attributes:
      barriers: classes left undecided by propagation.
    """

    cls: int
    dim: int
    axes: Axes
    barriers: tuple[int, ...] = ()

    @property
    def barrier_classes(self) -> tuple[int, ...]:
        return self.barriers

    def is_legal_on(self, cls: int, state: State) -> bool:
        return state.may_tile(cls, self.dim, self.axes)

    def play(self, state: State) -> None:
        state.tile(self.cls, self.dim, self.axes, (), self.barriers)

    def action(self, name: str, axis: str, also: Names = (), barriers: Names = ()) -> Action:
        return Tile(name, self.dim, axis, also, barriers)

    def describe(self, name_of: Callable[[int], str], label: Callable[[Axes], str]) -> str:
        return f"tile {name_of(self.cls)} dim {self.dim} on {label(self.axes)}"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class ReplicateClass(Decision):
    """Keep a class replicated along axes."""

    cls: int
    axes: Axes

    def is_legal_on(self, cls: int, state: State) -> bool:
        return state.free(cls, self.axes)

    def play(self, state: State) -> None:
        state.replicate(self.cls, self.axes)

    def action(self, name: str, axis: str, also: Names = (), barriers: Names = ()) -> Action:
        return Replicate(name, axis, also)

    def describe(self, name_of: Callable[[int], str], label: Callable[[Axes], str]) -> str:
        return f"replicate {name_of(self.cls)} on {label(self.axes)}"


ClassesOf = Callable[[Names], tuple[int, ...]]
_DECISIONS: Mapping[type[Tiling], Callable[[Any, int, Axes, ClassesOf], Decision]] = {
    Tile: lambda tile, cls, axes, of: TileClass(cls, tile.dim, axes, of(tile.barriers)),
    Replicate: lambda replicate, cls, axes, of: ReplicateClass(cls, axes),
}


def decision_of(action: Tiling, cls: int, axes: Axes, classes_of: ClassesOf) -> Decision | None:
    """The decision of an action on a value of class `cls`; None for actions without one.

    Args:
      classes_of: classes of the values with some names.
    """
    make = _DECISIONS.get(type(action))
    return None if make is None else make(action, cls, axes, classes_of)
