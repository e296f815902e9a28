"""Plays named actions on states: what schedules, saved plans and searches' answers come to."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from partir_search.ir.argument_paths import as_path, nearest
from partir_search.ir.axis_options import Modes
from partir_search.ir.core import Module, Value
from partir_search.ir.rule import KEPT, NONE
from partir_search.propagation.actions import (
    Action,
    Bar,
    Enter,
    Hold,
    IllegalAction,
    Leave,
    Mode,
    Nest,
    Replicate,
    RingForm,
    Stream,
    Tile,
)
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State


def apply_action(state: State, graph: Graph, action: Action, path: str | None = None) -> None:
    """Plays one named action. IllegalAction with the value's name if it cannot be.

    Parts of the axis on which the value is tiled so already (by propagation) are left as they are.
    """
    if isinstance(action, Stream | Hold | RingForm | Nest):
        state.modes = with_mode(state.modes, state.mesh.axes(action.axis), action)
        return
    if isinstance(action, Enter | Leave):
        state.modes = _with_end(state, graph.module, action)
        return
    value = value_named(graph.module, action.value)
    cls, axes = graph.class_of[value.id], state.mesh.axes(action.axis)
    if isinstance(action, Tile | Bar) and not 0 <= action.dim < len(value.type.shape):
        raise IllegalAction(f"{action.value}: {value.type} has no dim {action.dim}")
    if isinstance(action, Bar):
        if any(state.tiles[a][cls] == action.dim for a in axes):
            wish = f"left whole on dim {action.dim}"
            raise IllegalAction(decided(path or action.value, action.dim, action.axis, wish))
        state.bar(cls, action.dim, axes)
        return
    also = [graph.class_of[value_named(graph.module, name).id] for name in action.also]
    wish = "kept whole" if isinstance(action, Replicate) else f"tiled on dim {action.dim}"
    if isinstance(action, Tile):
        left = tuple(a for a in axes if state.tiles[a][cls] != action.dim)
        axes = left or axes
    for axis in axes:
        now = state.tiles[axis][cls]
        if now != NONE:
            raise IllegalAction(decided(path or action.value, now, action.axis, wish))
    if isinstance(action, Replicate):
        state.keep(cls, axes, also)
        return
    if any(state.barred(cls, action.dim, (a,)) for a in axes):
        raise IllegalAction(
            f"{path or action.value} cannot be {wish} along axis {action.axis!r}: its sharding is"
            " fixed, with None for that dim; give it UNCONSTRAINED there to leave it free"
        )
    if not state.may_tile(cls, action.dim, axes):
        others = [
            name
            for name, row in zip(state.mesh.names, state.tiles, strict=True)
            if row[cls] == action.dim
        ]
        raise IllegalAction(
            f"{path or action.value}: {value.type} dim {action.dim} does not divide by axis"
            f" {action.axis!r} of size {state.mesh.size(axes)}"
            + (f" on top of {others}" if others else "")
        )
    barriers = [graph.class_of[value_named(graph.module, name).id] for name in action.barriers]
    state.tile(cls, action.dim, axes, also, barriers)


def play_what_holds(
    state: State, graph: Graph, actions: Sequence[Action]
) -> tuple[list[Action], list[tuple[Action, str]]]:
    """Plays the actions that the state admits; returns them, and the others with the reason.

    An action whose wish is fulfilled already is neither.
    """
    played, dropped = list[Action](), list[tuple[Action, str]]()
    for action in actions:
        try:
            if fulfilled(state, graph, action):
                continue
            apply_action(state, graph, action)
        except ValueError as error:  # IllegalAction, or an axis that the mesh does not have
            dropped.append((action, str(error)))
        else:
            played.append(action)
    return played, dropped


def fix(state: State, graph: Graph, actions: Sequence[Action]) -> list[Action]:
    """Plays what the user fixed; returns what was not so already.

    Raises:
      IllegalAction: two of them contradict each other.
    """
    played: list[Action] = []
    try:
        for action in actions:
            if not fulfilled(state, graph, action):
                apply_action(state, graph, action)
                played.append(action)
        for action in actions:  # those named in `also` are skipped where they contradict
            if not isinstance(action, Tile | Replicate):
                continue
            for name in action.values:
                one = dataclasses.replace(action, value=name, also=())
                if not fulfilled(state, graph, one):
                    apply_action(state, graph, one)
                    played.append(one)
    except IllegalAction as error:
        reason, earlier, _ = str(error).partition(": an earlier tactic")
        if not earlier:  # orders of axes, or dims that do not divide
            raise
        raise IllegalAction(
            f"{reason}: another fixed sharding (in_shardings, out_shardings, a constraint, a plan"
            " that is followed) has it otherwise; an argument and the result that replaces it are"
            " one value and need one sharding"
        ) from error
    return played


def fulfilled(state: State, graph: Graph, action: Action) -> bool:
    """Tells whether values are tiled, kept or barred already as an action wants."""
    if not isinstance(action, Tile | Replicate | Bar):
        return False
    axes = state.mesh.axes(action.axis)
    classes = [graph.class_of[value_named(graph.module, n).id] for n in action.values]
    if isinstance(action, Bar):
        return all(state.barred(c, action.dim, axes) for c in classes)
    wish = action.dim if isinstance(action, Tile) else KEPT
    return all(state.tiles[a][c] == wish for a in axes for c in classes)


def with_mode(modes: Modes, axes: tuple[int, ...], action: Mode) -> Modes:
    """Modes after an action on `axes`. IllegalAction if axes are nested otherwise already."""
    if isinstance(action, Hold):
        return dataclasses.replace(modes, holds=modes.holds.union(axes))
    if isinstance(action, Nest):
        pairs = {(a, b) for i, a in enumerate(axes) for b in axes[i + 1 :]}
        nested = dataclasses.replace(modes, nests=modes.nests | pairs)
        try:
            nested.nested(sorted({a for pair in nested.nests for a in pair}))
        except ValueError:
            raise IllegalAction(
                f"one dim is to be tiled by {action.axis!r}, major to minor, and another one in"
                " another order; axes have one order in a program"
            ) from None
        return nested
    if isinstance(action, Stream):
        streams = {**modes.streams, **dict.fromkeys(axes, action.zigzag)}
        return dataclasses.replace(modes, streams=streams)
    return dataclasses.replace(modes, forms={**modes.forms, **dict.fromkeys(axes, action.form)})


def _with_end(state: State, module: Module, action: Enter | Leave) -> Modes:
    """Modes with one more argument or result that has a layout of its own."""
    enters = isinstance(action, Enter)
    ends = module.body.args if enters else module.body.results
    number = action.argument if isinstance(action, Enter) else action.result
    shape = ends[number].type.shape if 0 <= number < len(ends) else None
    axes = [state.mesh.axes(label) if label else () for label in action.layout]
    used = [a for each in axes for a in each]
    if (
        shape is None
        or len(shape) != len(axes)
        or len(set(used)) < len(used)
        or any(n % state.mesh.size(each) for n, each in zip(shape, axes, strict=True))
    ):
        raise IllegalAction(f"{action} does not fit: the shape there is {shape}")
    layout = number, tuple(axes)
    if enters:
        return dataclasses.replace(state.modes, enters=(*state.modes.enters, layout))
    return dataclasses.replace(state.modes, leaves=(*state.modes.leaves, layout))


def decided(path: str, now: int, axis: str, wish: str) -> str:
    """Why a value cannot be what an action wants."""
    held = f"tiled on dim {now}" if now >= 0 else "kept whole"
    return (
        f"{path} cannot be {wish} along axis {axis!r}: an earlier tactic (or propagation from it)"
        f" has it {held}; put this tactic first, or use another axis"
    )


def value_named(module: Module, name: str) -> Value:
    """The value that an action names; arguments also by path."""
    names = module.value_names()
    found = names.get(name) or names.get(name.replace("/", "."))
    if found is None:
        path = as_path(name, module.arg_paths)
        raise IllegalAction(
            f"the program has no value {path!r}; near it are: {nearest(path, module.arg_paths)}"
        )
    return found
