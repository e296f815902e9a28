"""Slices at places that depend on data: read from, and written into, tiles.

Of a tiled dim each device reads what lies in its tile, and zero elsewhere: the result is a partial
sum. What is written falls into some tiles, and the others stay as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from partir_search.ir.bind import bind
from partir_search.ir.core import Op
from partir_search.ir.kind import Kind
from partir_search.ir.role import Role
from partir_search.ir.rule import NONE, OpRule
from partir_search.rules.registry import register, result_shape, shape_of


@register("dynamic_slice", role=Role.DYNAMIC_SLICE)
def dynamic_slice(op: Op) -> OpRule:
    """Dims taken in full pass through; their start index is 0 by jax's clamping. Short pieces of
    dims are summed over its tiles: a sum of half a dim costs as much as gathering all of it.
    """
    shape, result = shape_of(op, 0), result_shape(op)
    dims = tuple(range(len(shape)))
    numbers = jnp.issubdtype(op.results[0].type.dtype, np.number)
    cut = [d for d in dims if shape[d] != result[d]]
    long = [d for d in cut if 2 * result[d] > shape[d] or not numbers]
    return OpRule(
        Kind.GATHER,
        sizes=shape,
        operands=(dims,) + ((),) * (len(op.operands) - 1),
        results=(tuple(NONE if d in cut else d for d in dims),),
        reducers=tuple("sum" if d in cut else "" for d in dims),
        blocked=frozenset(long),
        elementwise=True,
        linear=((0,),),
        indexed=frozenset(cut),
        localize=lambda p, _, results: {**p, "slice_sizes": results[0]},
        local=local_slice,
    )


def local_slice(ctx: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """Elements of the slice that lie in this tile; zeros for the rest."""
    x, wanted = args[0], op.params["slice_sizes"]
    starts = _starts(op, args[1:], wanted)
    sizes, shifts = list(wanted), {}
    for d in range(x.ndim):
        if ctx.tiles(d) == 1:
            continue
        if wanted[d] == shape_of(op, 0)[d]:
            sizes[d] = x.shape[d]
            continue
        starts[d], shifts[d] = _into_tile(ctx, d, starts[d], wanted[d], x.shape[d])
        sizes[d] = min(wanted[d], x.shape[d])
    (out,) = bind(op, {**op.params, "slice_sizes": tuple(sizes)}, (x, *starts))
    for d, shift in shifts.items():  # element j of the whole is element j + shift of the piece
        out = _shifted(out, d, shift, wanted[d])
    return [out]


def _starts(op: Op, starts: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """Clamped, as jax clamps them, to the extents that the program says."""
    bounds = op.params.get("bounds", shape_of(op, 0))
    clamped = []
    for start, size, extent in zip(starts, sizes, bounds, strict=True):
        most = min(max(extent - size, 0), jnp.iinfo(start.dtype).max)
        clamped.append(lax.convert_element_type(jnp.clip(start, 0, most), jnp.int32))
    return clamped


@register("dynamic_update_slice", role=Role.DYNAMIC_UPDATE)
def dynamic_update_slice(op: Op) -> OpRule:
    """Dims updated in full pass through; of others every tile takes what falls into it."""
    shape, update = shape_of(op, 0), shape_of(op, 1)
    dims = tuple(range(len(shape)))
    return OpRule(
        Kind.UPDATE,
        sizes=shape,
        operands=(
            dims,
            tuple(d if shape[d] == update[d] else NONE for d in dims),
            *((),) * (len(op.operands) - 2),
        ),
        results=(dims,),
        reducers=("",) * len(dims),
        elementwise=True,
        linear=((0, 1),),
        indexed=frozenset(d for d in dims if shape[d] != update[d]),
        local=local_update,
    )


def local_update(ctx: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """The tile with what falls into it."""
    x, update = args[:2]
    whole = shape_of(op, 1)
    starts = _starts(op, args[2:], whole)
    inside = []
    for d in range(x.ndim):
        if ctx.tiles(d) == 1 or whole[d] == shape_of(op, 0)[d]:
            continue
        starts[d], shift = _into_tile(ctx, d, starts[d], whole[d], x.shape[d])
        size = min(whole[d], x.shape[d])
        update = _shifted(update, d, -shift, size)
        line = tuple(size if e == d else 1 for e in range(x.ndim))
        place = lax.broadcasted_iota(jnp.int32, line, d) - shift
        inside.append((place >= 0) & (place < whole[d]))
    if inside:
        old = lax.dynamic_slice(x, starts, update.shape)
        update = jnp.where(functools.reduce(jnp.logical_and, inside), update, old)
    return bind(op, op.params, (x, update, *starts))


def _into_tile(ctx: Any, dim: int, start: Any, size: int, tile: int) -> tuple[Any, Any]:
    """Start, in the tile, of the piece that is read or written, and the piece's shift: element j of
    the whole is element j + shift of the piece.
    """
    start = start - ctx.tile_index(dim) * tile
    base = jnp.clip(start, 0, tile - min(size, tile))
    return base, start - base


def _shifted(x: Any, dim: int, shift: Any, size: int) -> Any:
    """`size` elements from `shift` on; zeros beyond the ends."""
    n = x.shape[dim]
    config = [(0, 0, 0)] * x.ndim
    config[dim] = (size, size, 0)
    padded = lax.pad(x, jnp.zeros((), x.dtype), config)
    return lax.dynamic_slice_in_dim(padded, jnp.clip(shift + size, 0, n + size), size, dim)
