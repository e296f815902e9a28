"""Emission of reshard steps inside a manual region."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from partir_search.ir.mesh import MeshShape
from partir_search.lowering.emit_window import coordinate, halo, halo_permute, permute
from partir_search.lowering.reshard_steps import (
    AllGather,
    AllToAll,
    Halo,
    HaloPermute,
    Mask,
    Permute,
    ReduceScatter,
    Reduction,
    ReshardStep,
    Slice,
)

StepRunner = Callable[[MeshShape, ReshardStep, Any, bool, Sequence[Any]], Any]
"""`run_step`, or what stands for it where a segment runs without its collectives."""


def run_step(
    mesh: MeshShape,
    step: ReshardStep,
    x: Any,
    tiles_first: bool = False,
    received: Sequence[Any] = (),
) -> Any:
    """Runs one reshard step on a local tile, inside a manual region over `mesh`.

    Args:
      x: the tile.
      tiles_first: transpose the scattered dim to the front before a reduce_scatter.
      received: blocks joined to the tile by a `Halo`.
    """
    names = tuple(mesh.names[a] for a in step.axes)
    sizes = [mesh.sizes[a] for a in step.axes]
    match step:
        case Slice():
            for axis, size in zip(step.axes, sizes, strict=True):
                tile = x.shape[step.dim] // size
                x = lax.dynamic_slice_in_dim(x, coordinate(mesh, axis) * tile, tile, step.dim)
            return x
        case Mask():
            first = [coordinate(mesh, axis) == 0 for axis in step.axes]
            return jnp.where(functools.reduce(jnp.logical_and, first), x, jnp.zeros_like(x))
        case Permute():
            return permute(x, step.pairs, dict(zip(names, sizes, strict=True)), mesh.device_names)
        case HaloPermute():
            return halo_permute(x, step, dict(zip(names, sizes, strict=True)), mesh.device_names)
        case Halo():
            return halo([x, *received], step, names)
        case AllGather():
            return lax.all_gather(x, names, axis=step.dim, tiled=True)
        case ReduceScatter() if jnp.iscomplexobj(x):  # XLA:TPU has none of complex numbers
            parts = jnp.stack((x.real, x.imag))
            parts = run_step(mesh, dataclasses.replace(step, dim=step.dim + 1), parts, tiles_first)
            return lax.complex(parts[0], parts[1])
        case ReduceScatter() if tiles_first and step.dim:
            shape, dim, tiles = x.shape, step.dim, math.prod(sizes)
            x = x.reshape(*shape[:dim], tiles, shape[dim] // tiles, *shape[dim + 1 :])
            return lax.psum_scatter(jnp.moveaxis(x, dim, 0), names, scatter_dimension=0)
        case ReduceScatter():
            return lax.psum_scatter(x, names, scatter_dimension=step.dim, tiled=True)
        case AllToAll():
            return lax.all_to_all(
                x, names, split_axis=step.split_dim, concat_axis=step.dim, tiled=True
            )
        case Reduction(monoid="sum"):
            return lax.psum(x, names)
        case Reduction(monoid="max" | "or"):
            return lax.pmax(x, names)
        case _:
            return lax.pmin(x, names)
