"""Plays a plan's actions on the program of other shapes, so that its arguments stay where they are.

An axis may not divide a dim any more: a batch of 1000 on 16 devices. Then a longer form of the
value is tiled, if the program pads it, or a part of the axis is used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from partir_search.ir.core import Module, Value
from partir_search.lowering.diagonals import straight
from partir_search.lowering.shard_map import argument_specs
from partir_search.mcts.goals import scorer
from partir_search.passes.align import apart, find_aligned
from partir_search.passes.pad import pad_module
from partir_search.passes.pad_choice import Pad, find_pads
from partir_search.passes.remat import Range, find_segments, rematerialize
from partir_search.plan.plan import Plan
from partir_search.plan.planned import Planned
from partir_search.planning.options import Options
from partir_search.planning.planner import Planner
from partir_search.propagation.actions import Action, Enter
from partir_search.propagation.apply import apply_fixed
from partir_search.propagation.contradictions import IllegalAction
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State

MakePlanner = Callable[[Module], Planner]
Fixed = Callable[[Module], Sequence[Action]]


@dataclasses.dataclass(frozen=True)
class Adapted:
    """A plan's actions applied to the program of other shapes.

    Attributes:
      left_out: actions that it does not admit, with the reason.
      inexact: whether some are left out, or played otherwise.
    """

    planned: Planned
    module: Module
    padding: tuple[Pad, ...]
    remat: tuple[Range, ...]
    left_out: tuple[str, ...]
    inexact: bool


def adapt(
    base: Plan, module: Module, fixed: Fixed, planner_of: MakePlanner, options: Options
) -> Adapted | None:
    """The best form of `module` under the actions of `base`, or None if none keeps its layouts.

    Args:
      fixed: what the user fixed, as actions on a form of the program.
      planner_of: a planner of a form of the program.
    """
    planner = planner_of(module)
    found = [
        _played(base, planner_of(pad_module(module, planner.graph.rules, pads)), fixed, pads, ())
        if pads
        else _played(base, planner, fixed, (), ())
        for pads in _paddings(base, module, planner, options)
    ]
    score = scorer(planner.goals)
    best = min((f for f in found if f), key=lambda f: score(f.planned.cost).rank(), default=None)
    if best is None or not base.remat:
        return best
    if options.remat is not True and best.planned.cost.peak_bytes <= planner.memory_limit:
        return best
    some = base.remat if best.padding == base.padding else tuple(find_segments(best.module))
    again = planner_of(rematerialize(best.module, some))
    return _played(base, again, fixed, best.padding, some) or best


def _paddings(
    base: Plan, module: Module, planner: Planner, options: Options
) -> list[tuple[Pad, ...]]:
    """Dims that may be padded: stencils' always, others as `base` did, or if they differ."""
    if not options.pad:
        return [()]
    rules, known = planner.graph.rules, base.module.value_names()
    aligned = find_aligned(module, rules, options.shape)
    uneven = find_pads(module, rules, planner.mesh)
    if aligned and uneven:
        uneven = apart(module, rules, aligned, uneven)
    if len(base.padding) > len(aligned) and uneven:
        return [(*aligned, *uneven)]
    uneven = tuple(p for p in uneven if _changes(p, known, module))  # others did not pay
    return [aligned, (*aligned, *uneven)] if uneven else [aligned]


def _changes(pad: Pad, known: Mapping[str, Value], module: Module) -> bool:
    """Tells whether a dim to be padded has another size than in the base program."""
    value, now = known.get(pad.value), module.value_names()[pad.value]
    return value is None or value.type.shape != now.type.shape


def _played(
    base: Plan,
    planner: Planner,
    fixed: Fixed,
    padding: tuple[Pad, ...],
    remat: tuple[Range, ...],
) -> Adapted | None:
    """The base plan's actions in their order; arguments that they no longer bring where it has
    them (its batch decided something that ours does not) come and go as there all the same.
    """
    module, graph = planner.module, planner.graph
    state = State(graph, planner.mesh)
    try:
        actions, left_out, inexact = play_adapted(state, graph, base.actions)
        actions += apply_fixed(state, fixed(module))
    except IllegalAction:
        return None
    planned = _at_ends(base, planner, state, actions)
    if planned is None:
        return None
    return Adapted(planned, module, padding, remat, tuple(left_out), inexact)


def entered(base: Plan, planner: Planner, actions: Sequence[Action]) -> Planned | None:
    """A plan's actions with the argument layouts of `base`; None if a layout does not fit."""
    state = State(planner.graph, planner.mesh)
    for action in actions:
        action.apply(state)
    return _at_ends(base, planner, state, list(actions))


def _at_ends(base: Plan, planner: Planner, state: State, actions: list[Action]) -> Planned | None:
    """The program of a state, whose actions are given, with the ends of `base`."""
    planned = planner.finish(state, actions)
    try:
        for enter in _entering(base, planned):
            enter.apply(state)
            actions.append(enter)
    except IllegalAction:
        return None
    planned = planner.finish(state, actions)
    return planned if all(_kept(base, planned)) else None


def _entering(base: Plan, planned: Planned) -> list[Enter]:
    """Layouts of arguments that a plan has elsewhere than `base`."""
    mesh = base.mesh_shape
    slots = base.sketch.body.args
    return [
        Enter(i, tuple(mesh.label(axes) for axes in straight(mesh, slots[i].layout)))
        for i, same in enumerate(_kept(base, planned))
        if not same
    ]


def _kept(base: Plan, planned: Planned) -> list[bool]:
    """True for each argument whose layout is the one in `base`, or whose type differs."""
    specs = argument_specs(planned.sketch, user=True)
    pairs = zip(base.arguments(), planned.graph.module.body.args, specs, strict=True)
    return [theirs == ours or known.type != value.type for (_, known, theirs), value, ours in pairs]


def play_adapted(
    state: State, graph: Graph, actions: Sequence[Action]
) -> tuple[list[Action], list[str], bool]:
    """Plays those actions that the state admits, or what comes nearest to them.

    Returns:
      What was played, the reasons why others were not, and whether any was changed or left out.
    """
    played, left_out, inexact = list[Action](), list[str](), False
    for action in actions:
        try:
            if not action.is_applied(state):
                action.apply(state)
                played.append(action)
            continue
        except ValueError as error:  # IllegalAction, or an axis that the mesh does not have
            reason, inexact = str(error), True
        for other in action.nearest(state):
            try:
                other.apply(state)
            except ValueError:
                continue
            played.append(other)
            break
        else:
            left_out.append(f"{action}: {reason}")
    return played, left_out, inexact
