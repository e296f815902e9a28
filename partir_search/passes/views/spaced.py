"""Look-ups at evenly spaced places of a dim, and additions there: nearest neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from partir_search.ir.core import Op, Value
from partir_search.passes.views.known import Known
from partir_search.passes.views.resize import LEAST
from partir_search.passes.views.view import zero
from partir_search.passes.views.write import Writer


def spaced(writer: Writer, op: Op, known: Known) -> bool:
    """Writes a gather, or a scatter that adds, at evenly spaced places: as repeats or a slice, as
    sums or padding between elements.
    """
    if op.prim not in ("gather", "scatter-add") or not isinstance(op.operands[0], Value):
        return False
    dn, shape, places = op.params["dimension_numbers"], op.operands[0].type.shape, op.operands[1]
    gathers = op.prim == "gather"
    along = dn.start_index_map if gathers else dn.scatter_dims_to_operand_dims
    gone = dn.collapsed_slice_dims if gathers else dn.inserted_window_dims
    kept = dn.offset_dims if gathers else dn.update_window_dims
    part = op.results[0] if gathers else op.operands[2]
    if len(along) != 1 or tuple(gone) != tuple(along) or dn.operand_batching_dims:
        return False
    (dim,) = along
    rest = [d for d in range(len(shape)) if d != dim]
    if tuple(kept) != tuple(rest) or len(places.type.shape) != 2:
        return False
    if any(part.type.shape[d] != shape[d] for d in rest):
        return False
    n, m = shape[dim], places.type.shape[0]
    at = known.array(places) if min(n, m) >= LEAST else None
    if at is None or at.min() < 0 or at.max() >= n:
        return False
    at = at.ravel()
    if m > n and m % n == 0 and (at == np.arange(m) // (m // n)).all():
        (_repeats if gathers else _sums)(writer, op, dim, m // n)
        return True
    step = n // m
    if step > 1 and n % m == 0 and (np.diff(at) == step).all():
        (_every if gathers else _between)(writer, op, dim, step, int(at[0]))
        return True
    return False


def _repeats(writer: Writer, op: Op, dim: int, each: int) -> None:
    (x, _), (result,) = op.operands, op.results
    shape = x.type.shape
    wide = (*shape[: dim + 1], each, *shape[dim + 1 :])
    dims = tuple(d if d <= dim else d + 1 for d in range(len(shape)))
    params = {"shape": wide, "broadcast_dimensions": dims, "sharding": None}
    made = writer.add(op, lax.broadcast_in_dim_p, (x,), wide, params, like=x.type)
    _reshaped(writer, op, made, result.type.shape, result)


def _every(writer: Writer, op: Op, dim: int, step: int, first: int) -> None:
    (x, _), (result,) = op.operands, op.results
    assert isinstance(x, Value)
    shape = x.type.shape
    grid = _reshaped(writer, op, x, (*shape[:dim], shape[dim] // step, step, *shape[dim + 1 :]))
    cut = (*shape[:dim], shape[dim] // step, 1, *shape[dim + 1 :])
    starts = tuple(first if d == dim + 1 else 0 for d in range(len(cut)))
    params: dict[str, Any] = {
        "start_indices": starts,
        "limit_indices": tuple(s + k for s, k in zip(starts, cut, strict=True)),
        "strides": None,
    }
    made = writer.add(op, lax.slice_p, (grid,), cut, params, like=x.type)
    _reshaped(writer, op, made, result.type.shape, result)


def _sums(writer: Writer, op: Op, dim: int, each: int) -> None:
    (x, _, part), (result,) = op.operands, op.results
    assert isinstance(part, Value)
    shape = x.type.shape
    grid = _reshaped(writer, op, part, (*shape[: dim + 1], each, *shape[dim + 1 :]))
    params = {"axes": (dim + 1,), "out_sharding": None}
    made = writer.add(op, lax.reduce_sum_p, (grid,), shape, params, like=x.type)
    writer.add(op, lax.add_p, (x, made), shape, {}, like=x.type, into=result)


def _between(writer: Writer, op: Op, dim: int, step: int, first: int) -> None:
    (x, _, part), (result,) = op.operands, op.results
    shape = x.type.shape
    ends = (first, step - 1 - first, step - 1)
    config = tuple(ends if d == dim else (0, 0, 0) for d in range(len(shape)))
    ins, params = (part, zero(x.type)), {"padding_config": config}
    made = writer.add(op, lax.pad_p, ins, shape, params, like=x.type)
    writer.add(op, lax.add_p, (x, made), shape, {}, like=x.type, into=result)


def _reshaped(
    writer: Writer, op: Op, x: Value, shape: Sequence[int], into: Value | None = None
) -> Value:
    params = {"new_sizes": tuple(shape), "dimensions": None, "sharding": None}
    return writer.add(op, lax.reshape_p, (x,), tuple(shape), params, like=x.type, into=into)
