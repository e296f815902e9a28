"""Conversion of decisions between the folded program and the unfolded one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from partir_search.ir.core import Module
from partir_search.mcts.game import Move
from partir_search.passes.fold.fold import Folded
from partir_search.planning.game import PlanningGame
from partir_search.propagation.actions import Action, tilings
from partir_search.propagation.contradictions import find_value, value_named
from partir_search.propagation.graph import Graph
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
    """Values of the unfolded program, arguments or not."""

    def all_of_class(self, cls: int) -> Sequence[int]:
        """Values of a class, arguments or not."""


class FoldMembers:
    """`Members` of a fold, by value and class of the quotient."""

    def __init__(self, folded: Folded, graph: Graph, module: Module) -> None:
        self._of_value: dict[int, list[int]] = {}
        self._of_class: dict[int, list[int]] = {}
        self._arguments = {v.id for v in module.body.args}
        for v, folded_value in enumerate(folded.class_of):
            if folded_value >= 0:
                self._of_value.setdefault(folded_value, []).append(v)
                self._of_class.setdefault(graph.class_of[folded_value], []).append(v)

    def of_class(self, cls: int) -> list[int]:
        values = self._of_class[cls]
        return [v for v in values if v in self._arguments] or values

    def of_value(self, value: int) -> list[int]:
        return self._of_value.get(value, [])

    def all_of_class(self, cls: int) -> list[int]:
        return self._of_class[cls]


def apply_to_fold(before: Sequence[Action], folded: Folded, module: Module, state: State) -> None:
    """Applies actions on values of the unfolded program to a state of the folded one."""
    names = _Names(folded, module, state.graph)
    for action in before:
        action.apply_folded(state, names)


def lift_to_module(
    decisions: Sequence[Decision], state: State, members: LiftedMembers
) -> list[Action]:
    """Converts decisions to actions on the unfolded program, applied to `state`.

    Args:
      decisions: of the folded program.
      state: of the unfolded program.
      members: of the fold.
    """
    done: list[Action] = []
    for decision in decisions:
        if lifted := lifted_action(decision, state, members):
            action, _ = lifted
            action.apply(state)
            done.append(action)
    return done


def lifted_action(
    decision: Decision, state: State, members: LiftedMembers, barriers: Collection[int] = ()
) -> tuple[Action, Collection[int]] | None:
    """Action of a decision on the unfolded program, and the decided classes or nodes.

    Args:
      barriers: further classes of the unfolded program left undecided by propagation.

    Returns:
      None if nothing is left to decide.
    """
    graph, module = state.graph, state.graph.module
    values = decision.undecided(members, state)
    if not values:
        return None
    name, *also = (module.values[v].name for v in values.values())
    ends = [v for c in decision.barrier_classes for v in members.all_of_class(c)]
    names = {graph.class_of[v]: module.values[v].name for v in ends}
    names |= {c: module.values[graph.members[c][0]].name for c in barriers}
    label = state.mesh.label(decision.axes)
    return decision.action(name, label, tuple(also), tuple(names.values())), values.keys()
