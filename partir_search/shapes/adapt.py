"""Adaptation of a plan's actions to a program of different shapes, with argument layouts preserved.

An axis may no longer divide a dim, as with a batch of 1000 on 16 devices. Then the padded form of
the value is tiled, if the program pads it, or a sub-axis is used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from partir_search.ir.core import Module, Value
from partir_search.ir.mesh import MeshShape
from partir_search.ir.rule import OpRule
from partir_search.lowering.diagonals import without_diagonals
from partir_search.lowering.shard_map import argument_specs
from partir_search.mcts.goals import scorer
from partir_search.passes.align import disjoint_pads, find_aligned
from partir_search.passes.pad import pad_module
from partir_search.passes.pad_choice import Pad, find_pads
from partir_search.passes.remat import Range, find_segments, rematerialize
from partir_search.plan.plan import Plan
from partir_search.plan.planned import Planned
from partir_search.planning.memory_fit import renamed_for
from partir_search.planning.options import Options
from partir_search.planning.planner import Planner
from partir_search.propagation.actions import Action, Enter
from partir_search.propagation.apply import apply_fixed
from partir_search.propagation.contradictions import IllegalAction
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State
from partir_search.rules.registry import RuleTable
from partir_search.shapes.transfer import MakePlanner, transferred

Fixed = Callable[[Module], Sequence[Action]]


@dataclasses.dataclass(frozen=True)
class Adapted:
    """A plan's actions applied to a program of different shapes.

    Attributes:
      planned: the program with the applied actions.
      module: the program after padding and rematerialization.
      padding: padded dims.
      remat: recomputed segments.
      left_out: actions that cannot be applied, with the reason.
      inexact: True if any action was left out or replaced by a nearby one.
    """

    planned: Planned
    module: Module
    padding: tuple[Pad, ...]
    remat: tuple[Range, ...]
    left_out: tuple[str, ...]
    inexact: bool


def adapt(
    base: Plan, module: Module, fixed: Fixed, planner_of: MakePlanner, options: Options, work: float
) -> Adapted | None:
    """Best form of `module` under the actions of `base`; None if no form preserves the layouts.

    Args:
      base: the plan to adapt.
      module: the program of the new shapes.
      fixed: function from a form of the program to the actions fixed by the user.
      planner_of: function from a form of the program to its planner.
      options: options of `auto_partition`.
      work: elements of the largest changed argument, relative to `base`.
    """
    same = _transferred(base, module, fixed, planner_of, options, work)
    if same is not None:
        return same
    if _stored_bytes(base, work) > base.memory_limit:  # without a graph of the plain program
        rules = list(map(RuleTable(), module.ops))
        if _paddings(base, module, rules, base.mesh_shape, options) == [base.padding]:
            padded = pad_module(module, rules, base.padding) if base.padding else module
            return _recomputed(base, padded, base.padding, fixed, planner_of)
    planner = planner_of(module)
    rules = planner.graph.rules
    paddings = _paddings(base, module, rules, planner.mesh, options)
    found = [
        _played(base, planner_of(pad_module(module, rules, pads)), fixed, pads, ())
        if pads
        else _played(base, planner, fixed, (), ())
        for pads in paddings
    ]
    score = scorer(planner.goals)
    best = min((f for f in found if f), key=lambda f: score(f.planned.cost).rank(), default=None)
    if best is None or not base.remat:
        return best
    if options.remat is not True and best.planned.cost.peak_bytes <= base.memory_limit:
        return best
    return _recomputed(base, best.module, best.padding, fixed, planner_of) or best


def _transferred(
    base: Plan, module: Module, fixed: Fixed, planner_of: MakePlanner, options: Options, work: float
) -> Adapted | None:
    """The form and the tilings of `base`, for a program that differs in extents alone."""
    stays = options.remat is True or _stored_bytes(base, work) > base.memory_limit
    stays = stays or not base.short_of_memory  # runs again for fewer seconds
    if base.padding or (base.remat and not stays):
        return None
    form = rematerialize(module, base.remat) if base.remat else module
    wanted = fixed(form)
    if not set(wanted).issubset(base.actions) and wanted != fixed(base.module):
        return None
    planned = transferred(base, form, planner_of)
    if planned is None or not _fits_as_base(base, planned, work):
        return None
    return Adapted(planned, form, (), base.remat, (), inexact=False)


def _fits_as_base(base: Plan, planned: Planned, work: float) -> bool:
    """True if the program fits, or if neither fits by far, whatever segments are recomputed."""
    if base.fits:
        return planned.most_peak_bytes <= base.memory_limit
    likely = _scaled(base, base.cost.peak_bytes, work)
    return likely > base.memory_limit or planned.cost.peak_bytes <= base.memory_limit


def _stored_bytes(base: Plan, work: float) -> float:
    """Approximate peak bytes of the actions of `base` with no segment recomputed; 0 if unknown.

    A peak with all segments recomputed stands for a larger, unknown peak without.
    """
    stored = base.peak_without_remat
    if stored is None and base.remat:
        stored = base.cost.peak_bytes
    return 0.0 if stored is None else _scaled(base, stored, work)


def _scaled(base: Plan, peak: float, work: float) -> float:
    """Approximate peak bytes of a step with `work` times the values of a step with a peak."""
    arguments = base.cost.argument_bytes
    return arguments + (peak - arguments) * work


def _recomputed(
    base: Plan,
    plain: Module,
    padding: tuple[Pad, ...],
    fixed: Fixed,
    planner_of: MakePlanner,
) -> Adapted | None:
    """The plan with the recomputed segments of `base`, or with all segments if it must.

    Args:
      plain: the program with padded dims and no segment recomputed.

    Returns:
      None if no form preserves the layouts of `base`.
    """
    found, everything = None, tuple(find_segments(plain))
    for segments in (base.remat, everything) if padding == base.padding else (everything,):
        planner = planner_of(rematerialize(plain, segments))
        tried = _played(base, planner, fixed, padding, segments)
        if tried is not None:
            found = tried
            if found.planned.cost.peak_bytes <= base.memory_limit:
                break
    return found


def _paddings(
    base: Plan, module: Module, rules: Sequence[OpRule], mesh: MeshShape, options: Options
) -> list[tuple[Pad, ...]]:
    """Candidate paddings.

    Dims of stencils are always padded; uneven dims are padded if `base` padded them or if their
    size has changed since `base`.

    Args:
      rules: per op id.
      mesh: the user's mesh with sub-axes.
    """
    if not options.pad:
        return [()]
    known = base.module.value_names()
    aligned = find_aligned(module, rules, options.shape)
    uneven = find_pads(module, rules, mesh)
    if aligned and uneven:
        uneven = disjoint_pads(module, rules, aligned, uneven)
    if len(base.padding) > len(aligned) and uneven:
        return [(*aligned, *uneven)]
    uneven = tuple(
        p for p in uneven if _changes(p, known, module)
    )  # `base` found padding of the rest not worthwhile
    return [aligned, (*aligned, *uneven)] if uneven else [aligned]


def _changes(pad: Pad, known: Mapping[str, Value], module: Module) -> bool:
    """True if the padded dim has a different size in `base`."""
    value, now = known.get(pad.value), module.value_names()[pad.value]
    return value is None or value.type.shape != now.type.shape


def _played(
    base: Plan,
    planner: Planner,
    fixed: Fixed,
    padding: tuple[Pad, ...],
    remat: tuple[Range, ...],
) -> Adapted | None:
    """Applies the actions of `base` in order, then restores the argument layouts of `base`.

    An argument may end up with a different layout (because an action on the batch was left out); an
    `Enter` action then gives the argument its old layout at the boundary of the program.
    """
    module, graph = planner.module, planner.graph
    state = State(graph, planner.mesh)
    try:
        actions, left_out, inexact = play_adapted(state, graph, renamed_for(module, base.actions))
        actions += apply_fixed(state, fixed(module))
    except IllegalAction:
        return None
    planned = _at_ends(base, planner, state, actions)
    if planned is None:
        return None
    return Adapted(planned, module, padding, remat, tuple(left_out), inexact)


def entered(base: Plan, planner: Planner, actions: Sequence[Action]) -> Planned | None:
    """Applies actions and gives arguments the layouts of `base`; None if a layout does not fit."""
    state = State(planner.graph, planner.mesh)
    for action in actions:
        action.apply(state)
    return _at_ends(base, planner, state, list(actions))


def _at_ends(base: Plan, planner: Planner, state: State, actions: list[Action]) -> Planned | None:
    """Program of `state` with the argument layouts of `base`; None if a layout does not fit."""
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
    """`Enter` actions for arguments with layouts different from `base`."""
    mesh = base.mesh_shape
    slots = base.sketch.body.args
    return [
        Enter(i, tuple(mesh.label(axes) for axes in without_diagonals(mesh, slots[i].layout)))
        for i, same in enumerate(_kept(base, planned))
        if not same
    ]


def _kept(base: Plan, planned: Planned) -> list[bool]:
    """True for each argument with the same layout as in `base`, or with a different type."""
    specs = argument_specs(planned.sketch, user=True)
    pairs = zip(base.arguments(), planned.graph.module.body.args, specs, strict=True)
    return [theirs == ours or known.type != value.type for (_, known, theirs), value, ours in pairs]


def play_adapted(
    state: State, graph: Graph, actions: Sequence[Action]
) -> tuple[list[Action], list[str], bool]:
    """Applies each action to the values that the program has, or the nearest legal variant.

    Returns:
      The applied actions, the reasons for actions left out, and True if any action was replaced or
        left out.
    """
    played, left_out, inexact = list[Action](), list[str](), False
    for action in actions:
        some = action.within(graph.module) or action
        inexact |= some != action
        try:
            if not some.is_applied(state):
                some.apply(state)
                played.append(some)
            continue
        except ValueError as error:  # an illegal action, or an axis missing in the mesh
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
