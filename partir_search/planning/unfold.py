"""Conversion of decisions between the folded program and the unfolded one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from partir_search.ir.core import Module
from partir_search.mcts.game import Move
from partir_search.passes.fold.fold import Folded
from partir_search.planning.game import PlanningGame
from partir_search.propagation.actions import Action, tilings
from partir_search.propagation.contradictions import find_value, value_named
from partir_search.propagation.graph import Graph
from partir_search.propagation.reach import reached_barriers
from partir_search.propagation.state import State
from partir_search.strategies.decisions import Decision, Members, decisions_of


def project_to_fold(
    hints: Sequence[Action], folded: Folded, module: Module, game: PlanningGame
) -> tuple[Move, ...]:
    """Converts actions to moves on the folded program; actions on missing values are dropped."""
    names = _Names(folded, module, game.graph)
    found = (decisions_of(a, game.mesh.axes(a.axis), names) for a in tilings(hints))
    return tuple(move for moves in found for move in moves)


def marks_of(module: Module, actions: Sequence[Action]) -> dict[int, str]:
    """Marks of values by id, from actions; values with different marks must not be folded."""
    found: dict[int, str] = {}
    for action in tilings(actions):
        rest = (action.axis, action.mark)
        for name in action.values:
            v = value_named(module, name).id
            found[v] = f"{found.get(v, '')}{rest}"
    return found


class _Names:
    """Names of values of a module, in the graph of the folded module; unknown ones are left out."""

    def __init__(self, folded: Folded, module: Module, graph: Graph) -> None:
        self._folded, self._module, self._graph = folded, module, graph

    def values(self, names: Sequence[str]) -> list[int]:
        known = (value for n in names if (value := find_value(self._module, n)) is not None)
        values = (self._folded.class_of[value.id] for value in known)
        return list(dict.fromkeys(v for v in values if v >= 0))

    def classes(self, names: Sequence[str]) -> list[int]:
        return list(dict.fromkeys(self._graph.class_of[v] for v in self.values(names)))

    def nodes(self, names: Sequence[str]) -> list[int]:
        makers = map(self._graph.analysis.def_use.makers.__getitem__, self.values(names))
        found = (self._graph.node_of[op.id] for op in makers if op is not None)
        return list(dict.fromkeys(n for n in found if n >= 0))


class LiftedMembers(Members, Protocol):
    """Values and classes of the unfolded program."""

    def classes_of(self, cls: int) -> Sequence[int]:
        """Classes of the unfolded program with values of a class, arguments or not."""


class FoldMembers:
    """`Members` of a fold, by value and class of the quotient."""

    def __init__(self, folded: Folded, fold: Graph, graph: Graph) -> None:
        """Members of a fold.

        Args:
          fold: graph of the quotient.
          graph: graph of the program.
        """
        self._of_value: dict[int, list[int]] = {}
        self._of_class: dict[int, list[int]] = {}
        self._arguments = {v.id for v in graph.module.body.args}
        self._program_class, self._classes_of = graph.class_of, dict[int, tuple[int, ...]]()
        for v, folded_value in enumerate(folded.class_of):
            if folded_value >= 0:
                self._of_value.setdefault(folded_value, []).append(v)
                self._of_class.setdefault(fold.class_of[folded_value], []).append(v)

    def of_class(self, cls: int) -> list[int]:
        values = self._of_class[cls]
        return [v for v in values if v in self._arguments] or values

    def of_value(self, value: int) -> list[int]:
        return self._of_value.get(value, [])

    def classes_of(self, cls: int) -> tuple[int, ...]:
        found = self._classes_of.get(cls)
        if found is None:
            classes = map(self._program_class.__getitem__, self._of_class[cls])
            found = self._classes_of[cls] = tuple(dict.fromkeys(classes))
        return found


class OwnMembers:
    """`Members` of a program without a fold."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._arguments = {v.id for v in graph.module.body.args}

    def of_class(self, cls: int) -> Sequence[int]:
        values = self._graph.members[cls]
        return [v for v in values if v in self._arguments] or values

    def of_value(self, value: int) -> Sequence[int]:
        return (value,)

    def classes_of(self, cls: int) -> Sequence[int]:
        return (cls,)


def apply_to_fold(before: Sequence[Action], folded: Folded, module: Module, state: State) -> None:
    """Applies actions on values of the unfolded program to a state of the folded one."""
    names = _Names(folded, module, state.graph)
    for action in before:
        action.apply_folded(state, names)


def apply_lifted(
    decision: Decision, state: State, members: LiftedMembers, barriers: Collection[int] = ()
) -> tuple[Action, Collection[int]] | None:
    """Applies a decision to a state of the unfolded program, as an action.

    Args:
      members: of the fold.
      barriers: further classes of the unfolded program left undecided by propagation.

    Returns:
      The action, and the decided classes or nodes; None if nothing is left to decide.
    """
    graph, module = state.graph, state.graph.module
    values = decision.undecided(members, state)
    if not values:
        return None
    name, *also = (module.values[v].name for v in values.values())
    ends = [c for fold in decision.barrier_classes for c in members.classes_of(fold)]
    names = {c: module.values[graph.members[c][0]].name for c in (*ends, *barriers)}
    label, before = state.mesh.label(decision.axes), [state.tiles[a][:] for a in decision.axes]

    def action(classes: Iterable[int]) -> Action:
        return decision.action(name, label, tuple(also), tuple(names[c] for c in classes))

    action(names).apply(state)
    reached = reached_barriers(state, decision.axes, before, names) if names else ()
    return action(reached), values.keys()
