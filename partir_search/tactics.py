"""Tactics and schedules: PartIR's words for partitioning step by step, by hand and by search.

A schedule is a list of tactics; each works on what the ones before left and never undoes it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Union

from partir_search.experts.moves import ContextParallel as ContextMove
from partir_search.experts.moves import DataParallel, Decision, RingParallel, TileClass
from partir_search.experts.strategist import Strategist
from partir_search.ir.core import Module, Value
from partir_search.ir.mesh import DIAGONAL, MeshShape
from partir_search.ir.rule import NONE
from partir_search.paths import matches, nearest
from partir_search.propagation.actions import Action, IllegalAction, Replicate, Stream, Tile
from partir_search.propagation.graph import Graph
from partir_search.propagation.propagate import State


class Special(enum.Enum):
    """Dims that are found rather than named."""

    FIRST_DIVISIBLE_DIM = "first_divisible_dim"
    REPLICATED = "replicated"


FIRST_DIVISIBLE_DIM = Special.FIRST_DIVISIBLE_DIM
"""Tile the first dim that the axis divides; arguments without one are left as they are."""

REPLICATED = Special.REPLICATED
"""Keep whole along the axis (PartIR's `atomic`)."""

Dim = Union[int, Special, None]
DimOrFn = Union[Dim, Callable[[str, tuple[int, ...]], Dim]]


@dataclasses.dataclass(frozen=True)
class ManualPartition:
    """Tiles named arguments on one axis.

    Attributes:
      dims: glob on argument paths (`*` within a part, `**` across parts; a subtree's path names
        all of it) to a dim, `FIRST_DIVISIBLE_DIM`, `REPLICATED`, None (leave), or a function of
        (path, shape) that returns one of these. In order; later globs see what earlier ones did.
      axis: mesh axis.
    """

    dims: Mapping[str, DimOrFn]
    axis: str


@dataclasses.dataclass(frozen=True)
class AutomaticPartition:
    """Searches for actions on `axes` (all of the mesh if None) within `episodes`."""

    axes: tuple[str, ...] | None = None
    episodes: int | None = None


@dataclasses.dataclass(frozen=True)
class SpatialTemporal:
    """PrimePar's P_{n x n} on two axes of equal size: partitioning in space and time.

    The batch is tiled on the first axis, features on the second, hidden features on their
    diagonal; products with parameters pass blocks around in rings while they work. Nothing is
    held twice. Rows of the batch, features and hidden features must divide by n (heads too).

    Attributes:
      axes: two axes of the mesh.

    Source: PrimePar (ASPLOS 2024, doi 10.1145/3620666.3651357), in a form in which cotangents lie
    as what they belong to does.
    """

    axes: tuple[str, str]

    @property
    def diagonal(self) -> str:
        return DIAGONAL.join(self.axes)


@dataclasses.dataclass(frozen=True)
class CollectiveMatmul:
    """Hides gathers and scatters behind the products that they are for, on some axes.

    A product that needs a gathered operand works on one block after the other as they pass around
    the axis; one whose result is scattered makes its blocks one after the other and passes the
    sums on. Operands that several products share are gathered as before.

    Attributes:
      axes: of the mesh.

    Source: Wang et al., ASPLOS 2023 (doi 10.1145/3567955.3567959).
    """

    axes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class ContextParallel:
    """Tiles the sequences that attention goes over: long contexts on several devices.

    Attention is found in ordinary code (a product, masks, a softmax, a product) and planned as one
    op forward and one backward; scores are not kept from one to the other but made again. Queries
    stay on their devices; keys and values pass around the axis block by block while attention works
    on them, and their gradients pass with them.

    Attributes:
      axis: of the mesh.
      ring: False gathers keys and values instead (as Llama 3.1 does).
      zigzag: whether, where no position looks at later ones, each device works on a chunk of early
        and one of late positions, so that all have equal work: half of it, for two permutes of half
        a block for each operand and result.

    Source: Liu et al., Ring Attention (arXiv 2310.01889); Llama 3.1 (arXiv 2407.21783, 3.3.2).
    """

    axis: str
    ring: bool = True
    zigzag: bool = False


Tactic = Union[
    ManualPartition, AutomaticPartition, SpatialTemporal, CollectiveMatmul, ContextParallel
]


def check_schedule(schedule: Sequence[Tactic], module: Module, mesh: MeshShape) -> None:
    """Everything that can be wrong with a schedule before any search runs."""
    automatic = bool(schedule) and all(isinstance(t, AutomaticPartition) for t in schedule)
    for path, value in zip(module.arg_paths, module.body.args, strict=True):
        if automatic and 0 in value.type.shape:
            at = f"{path} has shape {value.type.shape}"
            raise ValueError(f"{at}: it is empty; pass a non-empty batch, there is nothing to plan")
    for tactic in schedule:
        if isinstance(tactic, ContextParallel):
            mesh.axes(tactic.axis)
            continue
        if isinstance(tactic, AutomaticPartition | SpatialTemporal | CollectiveMatmul):
            for axis in tactic.axes or ():
                mesh.axes(axis)
            continue
        if not isinstance(tactic, ManualPartition):
            raise TypeError(
                "a schedule holds ManualPartition, AutomaticPartition, SpatialTemporal,"
                f" CollectiveMatmul and ContextParallel, not {tactic!r}"
            )
        mesh.axes(tactic.axis)
        for glob, dim in tactic.dims.items():
            found = [
                (p, v)
                for p, v in zip(module.arg_paths, module.body.args, strict=True)
                if matches(glob, p)
            ]
            if not found:
                raise ValueError(
                    f"{glob!r} matches no argument; near it are: {nearest(glob, module.arg_paths)}"
                )
            for path, value in found:
                wanted = dim(path, value.type.shape) if callable(dim) else dim
                check_dim(path, value, wanted, tactic.axis, mesh)


def check_dim(path: str, value: Value, dim: Dim, axis: str, mesh: MeshShape) -> None:
    """A ValueError that names path, shape and remedy if `dim` cannot be tiled on `axis`."""
    shape = value.type.shape
    if dim is None or isinstance(dim, Special):
        return
    if not isinstance(dim, int) or not -len(shape) <= dim < len(shape):
        raise ValueError(
            f"{path} has shape {shape}: there is no dim {dim} to tile on axis {axis!r};"
            f" use 0 to {len(shape) - 1}"
            if shape
            else f"{path} is a scalar and cannot be tiled"
        )
    size, n = mesh.size(mesh.axes(axis)), shape[dim]
    if n == 0:
        raise ValueError(f"{path} has shape {shape}: dim {dim} is empty; pass a non-empty batch")
    if n % size:
        hint = (
            f"it is smaller than the axis; use at least {size}"
            if n < size
            else f"{n - n % size} or {n + size - n % size} would divide"
        )
        raise ValueError(
            f"{path} has shape {shape}: dim {dim} of size {n} does not divide by axis {axis!r} of"
            f" size {size}; {hint}, or tile another dim"
        )


def diagonals(schedule: Sequence[Tactic]) -> list[str]:
    """The diagonals that a schedule names."""
    found = []
    for tactic in schedule:
        if isinstance(tactic, SpatialTemporal):
            found.append(tactic.diagonal)
        elif isinstance(tactic, ManualPartition):
            found += [name for name in tactic.axis.split("+") if DIAGONAL in name]
        elif isinstance(tactic, AutomaticPartition):
            found += [name for name in tactic.axes or () if DIAGONAL in name]
    return list(dict.fromkeys(found))


def ring_actions(
    tactic: SpatialTemporal, graph: Graph, state: State, strategist: Strategist
) -> list[Action]:
    """Plays a spatial-temporal tactic on `state`; returns the actions that had an effect."""
    mesh = state.mesh
    r, c, d = mesh.triple(mesh.index(tactic.diagonal))
    decisions = strategist.perform(DataParallel((r,)), state)
    decisions += strategist.perform(RingParallel((c, d)), state)
    return _named(decisions, graph, mesh)


def context_actions(
    tactic: ContextParallel, graph: Graph, state: State, strategist: Strategist
) -> list[Action]:
    """Plays context parallelism on `state`; returns the actions that had an effect."""
    mesh, axes = state.mesh, state.mesh.axes(tactic.axis)
    for cls, dim in strategist.contexts:
        now = state.tiles[axes[0]][cls]
        shape = graph.shapes[cls]
        if now != dim and shape[dim] % mesh.size(axes):
            value = graph.module.values[graph.members[cls][0]]
            raise IllegalAction(
                f"attention goes over a sequence of {shape[dim]} (dim {dim} of %{value.name}),"
                f" which does not divide by axis {tactic.axis!r} of size {mesh.size(axes)}"
            )
    if tactic.zigzag:
        _check_zigzag(tactic, graph, mesh.size(axes))
    actions = _named(strategist.perform(ContextMove(axes), state), graph, mesh)
    if tactic.ring:
        stream = Stream(tactic.axis, tactic.zigzag)
        apply_action(state, graph, stream)
        actions.append(stream)
    return actions


def _check_zigzag(tactic: ContextParallel, graph: Graph, size: int) -> None:
    rules = [(op, graph.rules[op.id]) for op in graph.module.ops if not op.regions]
    attentions = [(op, r.blockwise, r.sizes) for op, r in rules if r.blockwise]
    if not any(how.causal for _, how, _ in attentions):
        raise IllegalAction(
            f"attention at {attentions[0][0].source} looks at later positions (or no mask was found"
            " that keeps it from them): zigzag=True is for causal attention, all blocks are needed"
        )
    for op, how, sizes in attentions:
        if how.causal and sizes[how.factor] % (2 * size):
            raise IllegalAction(
                f"attention at {op.source} goes over a sequence of {sizes[how.factor]}, which"
                f" zigzag=True cuts into {2 * size} chunks on axis {tactic.axis!r} of size {size}:"
                f" use a multiple of {2 * size}, or zigzag=False"
            )


def _named(decisions: Sequence[Decision], graph: Graph, mesh: MeshShape) -> list[Action]:
    values = graph.module.values
    return [
        Tile(values[graph.members[x.cls][0]].name, x.dim, mesh.label(x.axes))
        for x in decisions
        if isinstance(x, TileClass)
    ]


def manual_actions(
    tactic: ManualPartition, graph: Graph, state: State, strategist: Strategist
) -> list[Action]:
    """Plays a manual tactic on `state`; returns the actions that had an effect."""
    module, mesh = graph.module, state.mesh
    axes = mesh.axes(tactic.axis)
    done: list[Action] = []
    for glob, spec in tactic.dims.items():
        for path, value in zip(module.arg_paths, module.body.args, strict=True):
            if not matches(glob, path) or not value.type.shape:
                continue
            cls = graph.class_of[value.id]
            dim = spec(path, value.type.shape) if callable(spec) else spec
            now = max((state.tiles[a][cls] for a in axes), key=lambda d: d != NONE)
            if dim is REPLICATED:
                if now == NONE:
                    apply_action(state, graph, Replicate(value.name, tactic.axis), path)
                    done.append(Replicate(value.name, tactic.axis))
                elif now >= 0:
                    raise IllegalAction(_decided(path, now, tactic.axis, "kept whole"))
                continue
            if dim is FIRST_DIVISIBLE_DIM:
                dim = strategist.first_divisible_dim(state, cls, axes) if now == NONE else NONE
                if dim == NONE:
                    continue
            if dim is None or isinstance(dim, Special):
                continue
            dim %= len(value.type.shape)
            if all(state.tiles[a][cls] == dim for a in axes):
                continue
            if now not in (NONE, dim):
                raise IllegalAction(_decided(path, now, tactic.axis, f"tiled on dim {dim}"))
            apply_action(state, graph, Tile(value.name, dim, tactic.axis), path)
            done.append(Tile(value.name, dim, tactic.axis))
    return done


def _decided(path: str, now: int, axis: str, wish: str) -> str:
    held = f"tiled on dim {now}" if now >= 0 else "kept whole"
    return (
        f"{path} cannot be {wish} along axis {axis!r}: an earlier tactic (or propagation from it)"
        f" has it {held}; put this tactic first, or use another axis"
    )


def apply_action(state: State, graph: Graph, action: Action, path: str | None = None) -> None:
    """Plays one named action. IllegalAction with the value's name if it cannot be.

    Parts of the axis on which the value is tiled so already (by propagation) are left as they are.
    """
    if isinstance(action, Stream):
        state.streams |= dict.fromkeys(state.mesh.axes(action.axis), action.zigzag)
        return
    value = value_named(graph.module, action.value)
    cls, axes = graph.class_of[value.id], state.mesh.axes(action.axis)
    also = [graph.class_of[value_named(graph.module, name).id] for name in action.also]
    wish = "kept whole" if isinstance(action, Replicate) else f"tiled on dim {action.dim}"
    if isinstance(action, Tile):
        if not 0 <= action.dim < len(value.type.shape):
            raise IllegalAction(f"{action.value}: {value.type} has no dim {action.dim}")
        left = tuple(a for a in axes if state.tiles[a][cls] != action.dim)
        axes = left or axes
    for axis in axes:
        now = state.tiles[axis][cls]
        if now != NONE:
            raise IllegalAction(_decided(path or action.value, now, action.axis, wish))
    if isinstance(action, Replicate):
        state.keep(cls, axes, also)
        return
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


def value_named(module: Module, name: str) -> Value:
    """The value that an action names; arguments also by path."""
    names = module.value_names()
    found = names.get(name) or names.get(name.replace("/", "."))
    if found is None:
        raise IllegalAction(
            f"the program has no value {name!r}; near it are:"
            f" {nearest(name, (v.name for v in module.body.args))}"
        )
    return found
