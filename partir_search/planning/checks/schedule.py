"""Checks of schedules before the search: tactics, axes, globs, and divisibility of dims."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Sequence
from typing import Any

from partir_search.ir.argument_paths import named
from partir_search.ir.core import Module, Value
from partir_search.ir.mesh import DIAGONAL, MeshShape
from partir_search.messages.wording import multiples, shown
from partir_search.planning.pipeline_tactic import Pipeline
from partir_search.planning.tactics import (
    TACTICS,
    AutomaticPartition,
    Dim,
    ManualPartition,
    Special,
    Tactic,
    check_kind,
)

Wanted = dict[tuple[str, int], set[int]]  # axes requested by manual tactics, by (path, dim)


def check_tactics(schedule: Sequence[Any], mesh: MeshShape) -> None:
    """Checks the items of a schedule and their axis names, without a program.

    Raises:
      TypeError: an item is no tactic.
      ValueError: the mesh has no axis of a given name.
    """
    for tactic in schedule:
        if not isinstance(tactic, TACTICS):
            raise TypeError(
                f"a schedule holds {', '.join(t.__name__ for t in TACTICS)}, not {shown(tactic)}"
                + _remedy(tactic)
            )
        for axis in tactic.axis_names:
            known_axis(mesh, axis)
    required = [t for t in schedule if isinstance(t, Pipeline) and t.placed and not t.optional]
    pipelines = [t for t in schedule if isinstance(t, Pipeline)]
    if required and len(pipelines) > 1:
        raise ValueError(
            "a schedule has one Pipeline, or several with optional=True to choose from, not"
            f" {len(pipelines)} of which one is required"
        )
    if any(isinstance(t, Pipeline) for t in schedule[len(pipelines) :]):
        raise ValueError("Pipeline comes first in a schedule: later tactics tile its stages")


def _remedy(item: Any) -> str:
    if isinstance(item, type) and item in TACTICS:
        return f"; write {item.__name__}(...)"
    if hasattr(item, "actions"):
        return "; a plan is the whole schedule: pass schedule=plan"
    if isinstance(item, dict):
        return "; write ManualPartition({'batch/x': 0}, axis='batch')"
    return ""


def known_axis(mesh: MeshShape, name: str) -> None:
    """Checks an axis name against the mesh.

    Args:
      mesh: the user's mesh.
      name: ``model``, ``batch+model``, a sub-axis ``model.0`` or a diagonal ``batch~model``.

    Raises:
      ValueError: the mesh has no axis of the name.
    """
    for one in re.split(rf"[+{DIAGONAL}]", name):
        if one not in mesh.names and re.sub(r"\.\d+$", "", one) not in mesh.names:
            mesh.index(one)


def check_schedule(schedule: Sequence[Tactic], module: Module, mesh: MeshShape) -> None:
    """Checks a schedule against a program.

    Args:
      schedule: the tactics.
      module: the traced program.
      mesh: the mesh, possibly with sub-axes.

    Raises:
      TypeError: an item is no tactic, or a function of dims returns no dim.
      ValueError: an axis or argument does not exist, or a dim cannot be tiled.
    """
    check_tactics(schedule, mesh.user)
    wanted: Wanted = collections.defaultdict(set)
    found: list[tuple[str, Value, Dim, str]] = []
    for tactic in schedule:
        for axis in tactic.axis_names:
            mesh.axes(axis)
        if isinstance(tactic, AutomaticPartition):
            for glob in tactic.exclude:
                named(module, glob)
        if not isinstance(tactic, ManualPartition):
            continue
        for glob, dim in tactic.dims.items():
            for path, value in named(module, glob):
                one = _called(glob, dim, path, value) if callable(dim) else dim
                if callable(dim):
                    check_kind(f"the function of {glob!r} returns for {path}", one)
                found.append((path, value, one, tactic.axis))
                if one is not None and not isinstance(one, Special) and value.type.shape:
                    wanted[path, one % len(value.type.shape)].update(mesh.axes(tactic.axis))
    for path, value, one, axis in found:
        check_dim(path, value, one, axis, mesh, wanted)


def _called(glob: str, dim: Callable[[str, tuple[int, ...]], Dim], path: str, value: Value) -> Dim:
    """Result of a user's function for one argument; an exception gets a note with the path."""
    try:
        return dim(path, value.type.shape)
    except Exception as error:
        error.add_note(f"in the function of {glob!r}, for {path} of shape {value.type.shape}")
        raise


def check_dim(
    path: str, value: Value, dim: Dim, axis: str, mesh: MeshShape, wanted: Wanted
) -> None:
    """Checks that `dim` exists and divides by `axis` and by all further axes tiling the same dim.

    Args:
      path, value: the argument.
      dim: the requested dim.
      axis: the requested axis.
      mesh: the mesh, possibly with sub-axes.
      wanted: all axes requested by manual tactics, by (path, dim).

    Raises:
      ValueError: the dim cannot be tiled; the message has path, shape and remedy.
    """
    shape = value.type.shape
    if dim is None or isinstance(dim, Special):
        return
    if not -len(shape) <= dim < len(shape):
        raise ValueError(
            f"{path} has shape {shape}: there is no dim {dim} to tile on axis {axis!r};"
            f" use 0 to {len(shape) - 1}"
            if shape
            else f"{path} is a scalar and cannot be tiled; leave it out, or give it None"
        )
    dim = dim % len(shape)
    own, n = mesh.axes(axis), shape[dim]
    size, total = mesh.size(own), mesh.size(tuple(wanted[path, dim] | set(own)))
    if 0 not in shape and n % total:
        others = [mesh.label((a,)) for a in sorted(wanted[path, dim] - set(own))]
        alone = f"axis {axis!r} of size {size}"
        named_axes = " and ".join(map(repr, [axis, *others]))
        together = f"the {total} devices of axes {named_axes} together"
        hint = (
            f"it is smaller than {'these' if others else 'the axis'}; use at least {total}"
            if n < total
            else f"{multiples(n, total)} would divide"
        )
        raise ValueError(
            f"{path} has shape {shape}: dim {dim} of size {n} does not divide by"
            f" {together if others else alone}; {hint}, or tile another dim"
        )
