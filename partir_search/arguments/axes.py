"""Axis types of the mesh that holds arguments and results.

An array on Explicit axes has its sharding in its type, and operations without an explicit output
sharding (`w1 @ w2`, slices, reshapes) may raise. Results of a step are therefore on Auto axes, as
with `jax.jit`, for every axis type of the user's mesh.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Union

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

AnyMesh = Union[Mesh, AbstractMesh]


@functools.lru_cache(maxsize=64)
def auto_axes(mesh: AnyMesh) -> AnyMesh:
    """The mesh with Auto axes and the same devices, order and names."""
    kinds = (AxisType.Auto,) * len(mesh.axis_names)
    if tuple(mesh.axis_types) == kinds:
        return mesh
    if isinstance(mesh, Mesh):
        return Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=kinds)


def is_context(mesh: AnyMesh) -> bool:
    """True if `mesh` is the mesh of `jax.set_mesh`; jax then rejects arrays on any further mesh."""
    current = jax.sharding.get_abstract_mesh()
    return bool(current.axis_names) and current == getattr(mesh, "abstract_mesh", mesh)


def within(mesh: AnyMesh) -> contextlib.AbstractContextManager[Any]:
    """Context manager that sets `mesh` if `jax.set_mesh` has set a different one.

    jax runs programs only on the devices of the mesh set by `jax.set_mesh`.
    """
    current = jax.sharding.get_abstract_mesh()
    if not isinstance(mesh, Mesh) or not current.axis_names or current == mesh.abstract_mesh:
        return contextlib.nullcontext()
    try:
        return jax.set_mesh(mesh)
    except ValueError:  # no mesh can be set inside a trace
        return contextlib.nullcontext()
