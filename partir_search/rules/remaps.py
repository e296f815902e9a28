"""`remap`: a dim read through an index map known before the program runs.

Not a primitive of jax: `passes.views` writes it for gathers, and scatters, with positions near the
elements computed from them, such as nearest neighbours in a grid of another size. Element p of the
result is element ``places[p]`` of the operand, or zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from partir_search.ir.bands import Band, band_of
from partir_search.ir.boundaries import Ints
from partir_search.ir.core import Op
from partir_search.ir.rule import InputWindow, OpRule
from partir_search.rules.registry import register, shape_of
from partir_search.rules.resizing import REMAP as REMAP_RESIZING
from partir_search.rules.shifts import LITTLE, windowed_rule

REMAP = "remap"


def band(places: Ints, extent: int) -> Band:
    """Band of an index map into a dim of `extent` elements."""
    return band_of(np.where(places < 0, extent, places), places, extent)


def reads(dim: int, found: Band, extent: int, operand: int = 0) -> InputWindow:
    """Windows of an operand's dim read by tiles of points."""
    near = found.off <= LITTLE * extent
    step, first, width = found.step, found.first, found.width
    return InputWindow(operand, dim, step, first, width, propagates_both_ways=near, over=found.over)


@register(REMAP)
def remap(op: Op) -> OpRule:
    """A tile reads the window of the dim covered by its positions."""
    dim, extent = op.params["dimension"], shape_of(op, 0)
    found = reads(dim, band(op.params["places"].positions, extent[dim]), extent[dim])
    fields: dict[str, Any] = {"elementwise": False, "monotone": ()}
    return windowed_rule(op, [found], resizing=REMAP_RESIZING, local=_local, **fields)


def _local(ctx: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """Elements of a window at the positions of this tile."""
    (x,), dim, places = args, op.params["dimension"], op.params["places"].positions
    tiles, nowhere = ctx.tiles(dim), x.shape[dim]
    whole = remap(op).window_on(0, dim)
    if tiles == 1 or whole is None:
        at: Any = np.where(places < 0, nowhere, places)
    else:
        points = len(places) // tiles
        starts = np.array([whole.tile_window(i, points)[0] for i in range(tiles)])
        by_tile = places.reshape(tiles, points)
        by_tile = np.where(by_tile < 0, nowhere, by_tile - starts[:, None])
        at = by_tile[0]
        if (by_tile != at).any():
            table = jnp.asarray(by_tile, jnp.int32)
            at = lax.dynamic_index_in_dim(table, ctx.tile_index(dim), keepdims=False)
    return [jnp.take(x, at, dim, mode="fill", fill_value=0)]
