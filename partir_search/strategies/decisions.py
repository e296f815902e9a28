"""Elementary decisions on classes of values and on ops: tile a dim, replicate, fix loops."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from partir_search.ir.rule import NONE
from partir_search.propagation.actions import Action, FixLoop, Replicate, Tile, Tiling
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State

Axes = tuple[int, ...]  # positions in the mesh, major to minor
Names = tuple[str, ...]


class Members(Protocol):
    """Values of the unfolded program, by class or value of the folded one."""

    def of_class(self, cls: int) -> Sequence[int]:
        """Values of a class; only the arguments of a class with arguments."""

    def of_value(self, value: int) -> Sequence[int]:
        """Values folded into one value."""


class Decision(abc.ABC):
    """A decision along mesh axes, in the graph of a folded program.

    Attributes:
      barrier_classes: classes left undecided by propagation.
    """

    __slots__ = ()
    axes: Any

    @property
    def barrier_classes(self) -> tuple[int, ...]:
        return ()

    @abc.abstractmethod
    def is_legal(self, state: State) -> bool:
        """True if `state` admits the decision."""

    @abc.abstractmethod
    def undecided(self, members: Members, state: State) -> dict[int, int]:
        """Values of the unfolded program to decide, by their class or node.

        Args:
          state: of the unfolded program.
        """

    @abc.abstractmethod
    def values(self, graph: Graph) -> Sequence[int]:
        """A value per decided class or op, in the graph of the decision."""

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

    def decide(self, state: State) -> bool:
        """Applies the decision if legal; False if not."""
        legal = self.is_legal(state)
        if legal:
            self.play(state)
        return legal

    def apply(self, targets: object, state: State) -> list[Decision]:
        """Applies the decision as a move; returns the decisions with an effect."""
        return [self] if self.decide(state) else []


class ClassDecision(Decision):
    """A decision on one class of values.

    Attributes:
      cls: the class.
    """

    __slots__ = ()
    cls: Any

    @abc.abstractmethod
    def is_legal_on(self, cls: int, state: State) -> bool:
        """True if `state` admits the decision on a class."""

    def is_legal(self, state: State) -> bool:
        return self.is_legal_on(self.cls, state)

    def values(self, graph: Graph) -> Sequence[int]:
        return (graph.members[self.cls][0],)

    def undecided(self, members: Members, state: State) -> dict[int, int]:
        class_of, found = state.graph.class_of, dict[int, int]()
        for v in members.of_class(self.cls):
            if self.is_legal_on(class_of[v], state):
                found.setdefault(class_of[v], v)
        return found


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class TileClass(ClassDecision):
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
class ReplicateClass(ClassDecision):
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


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class FixLoops(Decision):
    """Fix the loops of ops along axes.

    Attributes:
      results: ids of results of the ops, one per op.
      factor: factor of the loops; NONE for none.
    """

    results: tuple[int, ...]
    factor: int
    axes: Axes

    def is_legal(self, state: State) -> bool:
        return all(self._free(n, state) for n in self._nodes(self.results, state))

    def values(self, graph: Graph) -> Sequence[int]:
        return self.results

    def undecided(self, members: Members, state: State) -> dict[int, int]:
        values = [v for result in self.results for v in members.of_value(result)]
        nodes = zip(self._nodes(values, state), values, strict=True)
        return {n: v for n, v in nodes if self._free(n, state)}

    def _nodes(self, values: Sequence[int], state: State) -> list[int]:
        graph = state.graph
        makers = (graph.analysis.def_use.makers[v] for v in values)
        return [NONE if op is None else graph.node_of[op.id] for op in makers]

    def _free(self, node: int, state: State) -> bool:
        if node < 0 or self.factor >= len(state.graph.nodes[node].structure.sizes):
            return False  # ops decided together may have fewer factors
        return all(
            state.loops[a][node] == NONE and state.may_fix_loop(node, self.factor, a)
            for a in self.axes
        )

    def play(self, state: State) -> None:
        nodes = [n for n in self._nodes(self.results, state) if self._free(n, state)]
        state.fix_loops(nodes, self.factor, self.axes)

    def action(self, name: str, axis: str, also: Names = (), barriers: Names = ()) -> Action:
        return FixLoop(name, self.factor, axis, also)

    def describe(self, name_of: Callable[[int], str], label: Callable[[Axes], str]) -> str:
        loop = "no loop" if self.factor < 0 else f"loop {self.factor}"
        return f"{loop} of {len(self.results)} ops on {label(self.axes)}"


class Found(Protocol):
    """Classes and values of the folded program by names; unknown names are left out."""

    def classes(self, names: Names) -> Sequence[int]:
        """Classes of the values."""

    def values(self, names: Names) -> Sequence[int]:
        """Ids of the values."""


_DECISIONS: Mapping[type[Tiling], Callable[[Any, Axes, Found], list[Decision]]] = {
    Tile: lambda tile, axes, found: [
        TileClass(c, tile.dim, axes, tuple(found.classes(tile.barriers)))
        for c in found.classes(tile.values)
    ],
    Replicate: lambda replicate, axes, found: [
        ReplicateClass(c, axes) for c in found.classes(replicate.values)
    ],
    FixLoop: lambda loop, axes, found: [
        FixLoops(tuple(found.values(loop.values)), loop.factor, axes)
    ],
}


def decisions_of(action: Tiling, axes: Axes, found: Found) -> list[Decision]:
    """The decisions of an action on axes; [] for actions without one."""
    make = _DECISIONS.get(type(action))
    return [] if make is None else make(action, axes, found)
