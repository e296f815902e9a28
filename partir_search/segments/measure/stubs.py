"""Stand-ins of collectives on one device: the same shapes, no communication."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from partir_search.ir.mesh import MeshShape
from partir_search.lowering.emit_steps import run_step
from partir_search.lowering.reshard_steps import (
    AllGather,
    AllToAll,
    HaloPermute,
    Permute,
    ReduceScatter,
    Reduction,
    ReshardStep,
)


def stub_step(
    mesh: MeshShape,
    step: ReshardStep,
    x: Any,
    tiles_first: bool = False,
    received: Sequence[Any] = (),
) -> Any:
    """Result of a reshard step's shape, made on one device; arguments as of `run_step`."""
    n = math.prod(mesh.sizes[a] for a in step.axes)
    match step:
        case AllGather():
            return jnp.concatenate([x] * n, step.dim)
        case ReduceScatter():
            return _tile(x, step.dim, n)
        case AllToAll():
            return jnp.concatenate([_tile(x, step.split_dim, n)] * n, step.dim)
        case HaloPermute():
            return lax.slice_in_dim(x, step.start, step.start + step.length, axis=step.dim)
        case Permute() | Reduction():
            return x
        case _:
            return run_step(mesh, step, x, tiles_first, received)


def _tile(x: Any, dim: int, count: int) -> Any:
    return lax.slice_in_dim(x, 0, x.shape[dim] // count, axis=dim)
