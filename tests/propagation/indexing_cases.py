"""Cases of gathers and scatters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.propagation.samples import Case, floats, ints


def take_rows(table: Any, ids: Any) -> Any:
    return jnp.take(table, ids, axis=0)


def batched_take(x: Any, ids: Any) -> Any:
    return jnp.take_along_axis(x, ids[..., None], axis=-1)


def frames(x: Any, starts: Any) -> Any:
    """Windows of 3 along the second dim."""
    return jax.vmap(lambda at: lax.dynamic_slice_in_dim(x, at, 3, 1))(starts)


PIECES = lax.ScatterDimensionNumbers(  # of 3 elements, each of one row
    update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0, 1)
)


INDEXING_CASES: dict[str, Case] = {
    "gather_embedding": ("gather", take_rows, (floats(8, 6), ints(4, 2))),
    "gather_clip": (
        "gather",
        lambda t, i: jnp.take(t, i, axis=0, mode="clip"),
        (floats(8, 6), ints(4, 2, low=-3, high=12)),
    ),
    "gather_fill": (
        "gather",
        lambda t, i: t.at[i].get(mode="fill", fill_value=7.0),
        (floats(8, 6), ints(4, 2, low=-3, high=12)),
    ),
    "gather_frames": ("gather", frames, (floats(4, 8), ints(6, high=8))),
    "gather_batched": ("gather", batched_take, (floats(4, 2, 8), ints(4, 2))),
    "scatter_add": (
        "scatter-add",
        lambda t, i, u: t.at[i].add(u),
        (floats(8, 6), ints(4), floats(4, 6)),
    ),
    "scatter_add_bounds": (
        "scatter-add",
        lambda t, i, u: t.at[i].add(u, mode="drop"),
        (floats(8, 6), ints(4, low=-3, high=12), floats(4, 6)),
    ),
    "scatter_add_clip": (
        "scatter-add",
        lambda t, i, u: t.at[i].add(u, mode="clip"),
        (floats(8, 6), ints(4, low=-3, high=12), floats(4, 6)),
    ),
    "scatter_add_batched": (
        "scatter-add",
        lambda x, i: jax.grad(lambda y: batched_take(y, i).sum())(x),
        (floats(4, 2, 8), ints(4, 2)),
    ),
    "scatter_add_frames": (
        "scatter-add",
        lambda x, i: jax.grad(lambda y: (frames(y, i) ** 2).sum())(x),
        (floats(4, 8), ints(6, high=8)),
    ),
    "scatter_add_pieces": (
        "scatter-add",
        lambda t, i, u: lax.scatter_add(t, i, u, PIECES, mode=lax.GatherScatterMode.CLIP),
        (floats(8, 6), ints(4, 2, low=-3, high=12), floats(4, 3)),
    ),
    "scatter_max": (
        "scatter-max",
        lambda t, i, u: t.at[i].max(u),
        (floats(8, 6), ints(4), floats(4, 6)),
    ),
    "scatter_set": (
        "scatter",
        lambda t, u: t.at[jnp.array([1, 5, 2, 7])].set(u, unique_indices=True),
        (floats(8, 6), floats(4, 6)),
    ),
}
