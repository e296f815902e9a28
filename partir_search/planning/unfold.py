"""Conversion of decisions between the folded program and the unfolded one."""

from __future__ import annotations

from collections.abc import Sequence

from partir_search.ir.core import Module
from partir_search.mcts.game import Move
from partir_search.passes.fold.fold import Folded
from partir_search.planning.game import PlanningGame
from partir_search.propagation.actions import Action, tilings
from partir_search.propagation.contradictions import value_named
from partir_search.propagation.state import State
from partir_search.strategies.decisions import Decision, decision_of


def project_to_fold(
    hints: Sequence[Action], folded: Folded, module: Module, game: PlanningGame
) -> tuple[Move, ...]:
    """Converts actions to moves on the folded program; actions on missing values are dropped."""
    known = module.value_names()

    def classes_of(names: Sequence[str]) -> tuple[int, ...]:
        values = [folded.class_of[known[n].id] for n in names if n in known]
        return tuple(dict.fromkeys(game.graph.class_of[v] for v in values if v >= 0))

    moves: list[Move] = []
    for action in tilings(hints):
        axes = game.mesh.axes(action.axis)
        for cls in classes_of(action.values):
            move = decision_of(action, cls, axes, classes_of)
            moves += [] if move is None else [move]
    return tuple(moves)


def marks_of(module: Module, actions: Sequence[Action]) -> dict[int, str]:
    """Marks of values by id, from actions; values with different marks must not be folded."""
    found: dict[int, str] = {}
    for action in tilings(actions):
        rest = (action.axis, action.mark)
        for name in action.values:
            v = value_named(module, name).id
            found[v] = f"{found.get(v, '')}{rest}"
    return found


def apply_to_fold(before: Sequence[Action], folded: Folded, module: Module, state: State) -> None:
    """Applies actions on values of the unfolded program to a state of the folded one."""

    def classes_of(names: Sequence[str]) -> list[int]:
        values = [value_named(module, name).id for name in names]
        return list(dict.fromkeys(state.graph.class_of[folded.class_of[v]] for v in values))

    for action in before:
        action.apply_folded(state, classes_of)


def lift_to_module(
    folded: Folded, game: PlanningGame, decisions: Sequence[Decision], state: State
) -> list[Action]:
    """Converts decisions on folded classes to actions on the module, applied to `state`."""
    graph, module = state.graph, state.graph.module
    members: dict[int, list[int]] = {}
    for v, folded_value in enumerate(folded.class_of):
        if folded_value >= 0:
            members.setdefault(game.graph.class_of[folded_value], []).append(v)
    arguments = {v.id for v in module.body.args}
    done: list[Action] = []
    for decision in decisions:
        values = members[decision.cls]
        values = [v for v in values if v in arguments] or values
        first: dict[int, str] = {}  # a name per class of the whole program still to decide
        for v in values:
            cls = graph.class_of[v]
            if decision.is_legal_on(cls, state):
                first.setdefault(cls, module.values[v].name)
        if not first:
            continue
        name, *also = first.values()
        ends = [v for c in decision.barrier_classes for v in members[c]]
        barriers = {graph.class_of[v]: module.values[v].name for v in ends}
        label = state.mesh.label(decision.axes)
        action = decision.action(name, label, tuple(also), tuple(barriers.values()))
        action.apply(state)
        done.append(action)
    return done
