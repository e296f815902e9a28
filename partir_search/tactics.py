"""Tactics and schedules: PartIR's words for partitioning step by step, by hand and by search.

A schedule is a list of tactics; each works on what the ones before left and never undoes it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Union

from partir_search.experts.strategist import Strategist
from partir_search.ir.core import Module, Value
from partir_search.ir.mesh import DIAGONAL, MeshShape
from partir_search.ir.rule import NONE
from partir_search.parallelism import (
    PARALLELISM,
    ContextParallel,
    Parallelism,
    SpatialTemporal,
)
from partir_search.paths import matches, nearest
from partir_search.playing import apply_action, decided
from partir_search.propagation.actions import Action, IllegalAction, Replicate, Tile
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
    """Tiles named arguments on one axis; arrays without elements stay whole.

    Attributes:
      dims: glob on argument paths (`*` within a part, `**` for zero or more; a subtree's path names
        all of it) to a dim, `FIRST_DIVISIBLE_DIM`, `REPLICATED`, None (leave), or a function of
        (path, shape) that returns one of these. In order; later globs see what earlier ones did.
      axis: mesh axis.
    """

    dims: Mapping[str, DimOrFn]
    axis: str


@dataclasses.dataclass(frozen=True)
class AutomaticPartition:
    """Searches for actions on `axes` (all of the mesh if None) within `episodes`.

    Attributes:
      leave: globs on the paths of arguments that the search does not tile; propagation from others
        may.
    """

    axes: tuple[str, ...] | None = None
    episodes: int | None = None
    leave: tuple[str, ...] = ()


Tactic = Union[ManualPartition, AutomaticPartition, Parallelism]


def check_schedule(schedule: Sequence[Tactic], module: Module, mesh: MeshShape) -> None:
    """Everything that can be wrong with a schedule before any search runs."""
    for tactic in schedule:
        if isinstance(tactic, ContextParallel):
            mesh.axes(tactic.axis)
            continue
        if isinstance(tactic, (AutomaticPartition, *PARALLELISM)):
            for axis in tactic.axes or ():
                mesh.axes(axis)
            if isinstance(tactic, AutomaticPartition):
                for glob in tactic.leave:
                    named(module, glob)
            continue
        if not isinstance(tactic, ManualPartition):
            kinds = [t.__name__ for t in (ManualPartition, AutomaticPartition, *PARALLELISM)]
            raise TypeError(f"a schedule holds {', '.join(kinds)}, not {tactic!r}")
        mesh.axes(tactic.axis)
        for glob, dim in tactic.dims.items():
            for path, value in named(module, glob):
                wanted = dim(path, value.type.shape) if callable(dim) else dim
                check_dim(path, value, wanted, tactic.axis, mesh)


def named(module: Module, glob: str) -> list[tuple[str, Value]]:
    """The arguments that a glob names; a ValueError with near paths if it names none."""
    pairs = zip(module.arg_paths, module.body.args, strict=True)
    found = [(p, v) for p, v in pairs if matches(glob, p)]
    if not found:
        raise ValueError(
            f"{glob!r} matches no argument; near it are: {nearest(glob, module.arg_paths)}"
        )
    return found


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
    if 0 not in shape and n % size:
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


def manual_actions(
    tactic: ManualPartition, graph: Graph, state: State, strategist: Strategist
) -> list[Action]:
    """Plays a manual tactic on `state`; returns the actions that had an effect."""
    module, mesh = graph.module, state.mesh
    axes = mesh.axes(tactic.axis)
    done: list[Action] = []
    for glob, spec in tactic.dims.items():
        for path, value in zip(module.arg_paths, module.body.args, strict=True):
            if not matches(glob, path) or not value.type.shape or 0 in value.type.shape:
                continue
            cls = graph.class_of[value.id]
            dim = spec(path, value.type.shape) if callable(spec) else spec
            now = max((state.tiles[a][cls] for a in axes), key=lambda d: d != NONE)
            if dim is REPLICATED:
                if now == NONE:
                    apply_action(state, graph, Replicate(value.name, tactic.axis), path)
                    done.append(Replicate(value.name, tactic.axis))
                elif now >= 0:
                    raise IllegalAction(decided(path, now, tactic.axis, "kept whole"))
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
                raise IllegalAction(decided(path, now, tactic.axis, f"tiled on dim {dim}"))
            apply_action(state, graph, Tile(value.name, dim, tactic.axis), path)
            done.append(Tile(value.name, dim, tactic.axis))
    return done
