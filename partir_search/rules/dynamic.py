"""Slices at data-dependent indices: reads from tiles and writes into tiles.

On a tiled dim each device reads the elements inside of its tile, and zeros for the remainder: the
result is a partial sum. A write changes the tiles it overlaps and leaves all remaining ones.
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
    """Full dims pass through; short slices of a dim are partial sums over its tiles.

    The start index of a full dim is 0 by jax's clamping. A slice of more than half a dim blocks the
    dim: the sum would cost as much as an all_gather of the dim.
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
    """Elements of the slice inside of this tile; zeros for the remainder."""
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
    for d, shift in shifts.items():  # element j of the slice is element j + shift of the piece
        out = _shifted(out, d, shift, wanted[d])
    return [out]


def _starts(op: Op, starts: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """Start indices, clamped by jax's rule to the extents of the program before padding."""
    bounds = op.params.get("bounds", shape_of(op, 0))
    clamped = []
    for start, size, extent in zip(starts, sizes, bounds, strict=True):
        most = min(max(extent - size, 0), jnp.iinfo(start.dtype).max)
        clamped.append(lax.convert_element_type(jnp.clip(start, 0, most), jnp.int32))
    return clamped


@register("dynamic_update_slice", role=Role.DYNAMIC_UPDATE)
def dynamic_update_slice(op: Op) -> OpRule:
    """Full dims pass through; along any further dim each tile takes its slice of the update."""
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
    """The tile with its slice of the update written."""
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
    """Start in the tile of the piece read or written, and the piece's shift.

    Element j of the slice is element j + shift of the piece.
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
