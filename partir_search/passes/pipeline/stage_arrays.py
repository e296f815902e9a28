"""Arrays with a dim of stages: by layer, shifted between stages, and in slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def by_stage(x: Any, stages: int, chunks: int) -> Any:
    """Rows of layers [layers, ...] by stage.

    Returns:
      [layers of a stage, stages, ...] for one chunk, or else [stages, chunks, layers of a chunk,
      ...]; part c * stages + s of the layers is chunk c of stage s. Further rows fill the last
      places if stages and chunks do not divide the rows.
    """
    missing = -x.shape[0] % (stages * chunks)
    if missing and jnp.issubdtype(x.dtype, jax.dtypes.extended):  # random keys have no zeros
        x = jnp.concatenate([x, lax.slice_in_dim(x, x.shape[0] - missing, x.shape[0])])
    elif missing:
        x = lax.pad(x, np.zeros((), x.dtype), [(0, missing, 0), *[(0, 0, 0)] * (x.ndim - 1)])
    parts = (stages,) if chunks == 1 else (chunks, stages)
    return jnp.swapaxes(x.reshape(*parts, -1, *x.shape[1:]), 0, 1)


def by_layer(x: Any, chunks: int, count: int) -> Any:
    """Inverse of `by_stage` for `count` rows of layers."""
    shape = x.shape[2:] if chunks == 1 else x.shape[3:]
    rows = jnp.swapaxes(x, 0, 1).reshape(-1, *shape)
    return rows if rows.shape[0] == count else lax.slice_in_dim(rows, 0, count)


def at_stage(x: Any, stage: int) -> Any:
    """x[stage] of an array [stages, ...], as a masked sum: of partial sums if stages are tiled."""
    zero = jnp.zeros((), x.dtype)
    masked = jnp.where(_is_stage(x, stage), x, zero)
    if x.dtype == jnp.bool_:
        return jnp.any(masked, axis=0)
    return lax.reduce_sum(masked, (0,))


def with_stage(x: Any, stage: int, row: Any, valid: Any) -> Any:
    """An array [stages, ...] with `row` in place of x[stage].

    Args:
      valid: False leaves x[stage] as it is; None always replaces it.
    """
    here = _is_stage(x, stage)
    return jnp.where(here if valid is None else here & valid, row[None], x)


def _is_stage(x: Any, stage: int) -> Any:
    numbers = lax.iota(jnp.int32, x.shape[0])
    return lax.expand_dims(numbers == stage, range(1, x.ndim))


def shifted(x: Any, by: int, wrap: bool) -> Any:
    """An array [stages, ...] with each row `by` stages further on.

    Args:
      by: 1 or -1.
      wrap: True moves the last row to the first stage; otherwise zeros arrive there.
    """
    if wrap:
        return jnp.roll(x, by, axis=0)
    padding = [(by, -by, 0), *[(0, 0, 0)] * (x.ndim - 1)]
    return lax.pad(x, np.zeros((), x.dtype), padding)


def layer_of(x: Any, chunk: Any, layer: Any) -> Any:
    """x[chunk, layer] of an array [chunks, layers, ...]."""
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(x.ndim - 2)),
        collapsed_slice_dims=(0, 1),
        start_index_map=(0, 1),
    )
    return lax.gather(
        x,
        jnp.stack([chunk, layer]),
        numbers,
        slice_sizes=(1, 1, *x.shape[2:]),
        indices_are_sorted=True,
        unique_indices=True,
        mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    )


def row_written(buffer: Any, x: Any, at: Any, layer: Any, valid: Any) -> Any:
    """An array [places, layers, ...] with `x` [...] in place of buffer[at, layer].

    Args:
      valid: False leaves the row as it is; None always replaces it.
    """
    if valid is not None:
        x = jnp.where(valid, x, layer_of(buffer, at, layer))
    return _row_scattered(lax.scatter, buffer, x, at, layer)


def row_added(buffer: Any, x: Any, at: Any, layer: Any) -> Any:
    """An array [places, layers, ...] with `x` [...] added to buffer[at, layer]."""
    return _row_scattered(lax.scatter_add, buffer, x.astype(buffer.dtype), at, layer)


def _row_scattered(scatter: Callable[..., Any], buffer: Any, x: Any, at: Any, layer: Any) -> Any:
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(x.ndim)),
        inserted_window_dims=(0, 1),
        scatter_dims_to_operand_dims=(0, 1),
    )
    return scatter(
        buffer,
        jnp.stack([at, layer]),
        x,
        numbers,
        indices_are_sorted=True,
        unique_indices=True,
        mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    )


def written(slots: Any, x: Any, at: Any) -> Any:
    """Slots with x [layers, stages, ...] written, each stage at its number in `at` [stages]."""
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(0, *range(2, x.ndim)),
        inserted_window_dims=(1,),
        scatter_dims_to_operand_dims=(1,),
        operand_batching_dims=(0,),
        scatter_indices_batching_dims=(0,),
    )
    return lax.scatter(
        slots,
        lax.expand_dims(at, (1,)),
        x,
        numbers,
        indices_are_sorted=True,
        unique_indices=True,
        mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    )


def stored(slots: Sequence[Any], news: Sequence[Any], at: Any, valid: Any) -> list[Any]:
    """Arrays of slots with arrays of `news` written, each stage at the number in `at` [stages].

    Args:
      valid: [stages] False for a stage without a write; None if all write.
    """
    found = []
    for old, new in zip(slots, news, strict=True):
        if valid is not None:
            here = lax.expand_dims(valid, (0, *range(2, new.ndim)))
            new = jnp.where(here, new, read(old, at))
        found.append(written(old, new, at))
    return found


def read(slots: Any, at: Any) -> Any:
    """[layers, stages, ...] from slots, each stage at its number in `at` [stages]."""
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(0, *range(2, slots.ndim - 1)),
        collapsed_slice_dims=(1,),
        start_index_map=(1,),
        operand_batching_dims=(0,),
        start_indices_batching_dims=(0,),
    )
    return lax.gather(
        slots,
        lax.expand_dims(at, (1,)),
        numbers,
        slice_sizes=(1, 1, *slots.shape[2:]),
        indices_are_sorted=True,
        unique_indices=True,
        mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    )


def masked(x: Any, valid: Any) -> Any:
    """`x` where `valid`, a scalar, is true, and zeros elsewhere."""
    return jnp.where(valid, x, jnp.zeros((), x.dtype))


def rows_at(rows: Sequence[Any], ticks: Sequence[int]) -> Any:
    """Rows of arrays [ticks, ...], one after the other, at `ticks`."""
    joined = rows[0] if len(rows) == 1 else jnp.concatenate(rows)
    if list(ticks) == list(range(ticks[0], ticks[0] + len(ticks))):
        return lax.slice_in_dim(joined, ticks[0], ticks[0] + len(ticks))
    return joined[jnp.asarray(ticks)]
