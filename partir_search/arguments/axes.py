"""The axis types of the mesh on which arguments and results live.

An array on Explicit axes carries its sharding in its type, and ordinary code on it must say how
every result is to lie: `w1 @ w2`, slices and reshapes raise. So a step's results are on Auto axes,
as those of `jax.jit` are, whatever the axes of the user's mesh.
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
    """The mesh with Auto axes: same devices, order and names."""
    kinds = (AxisType.Auto,) * len(mesh.axis_names)
    if tuple(mesh.axis_types) == kinds:
        return mesh
    if isinstance(mesh, Mesh):
        return Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=kinds)


def is_context(mesh: AnyMesh) -> bool:
    """Tells whether `jax.set_mesh` has set this mesh: jax then takes arrays of no other one."""
    here = jax.sharding.get_abstract_mesh()
    return bool(here.axis_names) and here == getattr(mesh, "abstract_mesh", mesh)


def within(mesh: AnyMesh) -> contextlib.AbstractContextManager[Any]:
    """`mesh` as the one that is set, where `jax.set_mesh` has set another: jax runs no program on
    other devices than that one's.
    """
    here = jax.sharding.get_abstract_mesh()
    if not isinstance(mesh, Mesh) or not here.axis_names or here == mesh.abstract_mesh:
        return contextlib.nullcontext()
    try:
        return jax.set_mesh(mesh)
    except ValueError:  # inside of a trace, where no mesh can be set
        return contextlib.nullcontext()
