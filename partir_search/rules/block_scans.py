"""`scan_blocks`: joins cumulative ops (cumsum, cummax, ...) of the blocks of a dim.

`passes.block_scans` writes the op after a cumulative op within each of t blocks of n / t elements.
Only the totals of the blocks are replicated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from partir_search.ir.core import Op, Operand
from partir_search.ir.kind import Kind
from partir_search.ir.reducers import identity
from partir_search.ir.rule import NONE, OpRule
from partir_search.rules.construct import NewOp, own
from partir_search.rules.registry import register, shape_of

SCAN_BLOCKS = "scan_blocks"

COMBINE: Mapping[str, tuple[Callable[..., Any], Callable[[Any, Any], Any], str]] = {
    "cumlogsumexp": (lax.cumlogsumexp, jnp.logaddexp, "max"),
    "cummax": (lax.cummax, lax.max, "max"),
    "cummin": (lax.cummin, lax.min, "min"),
    "cumprod": (lax.cumprod, lax.mul, "prod"),
    "cumsum": (lax.cumsum, lax.add, "sum"),
}
"""By primitive: the function along a dim, its combination of two numbers, and a monoid with the
same identity element."""


def is_cumulative(op: Op) -> bool:
    """True for an op that combines each element with all elements before or after it on a dim."""
    return op.prim in COMBINE


def joined_blocks(op: Op, within: Operand, totals: Operand) -> NewOp:
    """Cumulative op over all blocks of a dim.

    Args:
      op: the cumulative op over the full dim.
      within: the op within each block, [..., t, n / t, ...].
      totals: [..., t, ...] last elements of the blocks (the first ones for a reverse op).
    """
    axis, reverse = op.params["axis"], op.params["reverse"]
    shape = within.type.shape
    return own(SCAN_BLOCKS, (within, totals), shape, scan=op.prim, axis=axis, reverse=reverse)


@register(SCAN_BLOCKS)
def scan_blocks(op: Op) -> OpRule:
    """Tiles all dims; needs the totals of all blocks.

    Operands: the cumulative op within each block [..., t, n / t, ...] and totals of blocks
    [..., t, ...]. Params: `scan`, the cumulative primitive; `axis` of the t blocks; `reverse`.
    """
    shape, axis = shape_of(op, 0), op.params["axis"]
    dims = tuple(range(len(shape)))
    totals = tuple(NONE if d == axis else d for d in dims if d != axis + 1)
    return OpRule(
        Kind.CUMULATIVE,
        sizes=shape,
        operands=(dims, totals),
        results=(dims,),
        reducers=("",) * len(shape),
        linear=((0, 1),) if op.params["scan"] == "cumsum" else (),
        flops_per_point=1.0,
        local=_local,
    )


def _local(ctx: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """Blocks combined with the totals of all blocks before them (after them, in reverse)."""
    (within, totals), axis, backwards = args, op.params["axis"], op.params["reverse"]
    along, combine, monoid = COMBINE[op.params["scan"]]
    one = np.ones((), totals.dtype)[()] if monoid == "prod" else identity(monoid, totals.dtype)
    until = along(totals, axis=axis, reverse=backwards)
    blocks = within.shape[axis]
    beyond = max(ctx.tiles(axis) * blocks - totals.shape[axis], 0)  # blocks of a padded dim
    shift = (-1, 1 + beyond, 0) if backwards else (1, beyond - 1, 0)
    config = [shift if d == axis else (0, 0, 0) for d in range(totals.ndim)]
    before = lax.pad(until, jnp.asarray(one, totals.dtype), config)
    if ctx.tiles(axis) > 1:
        before = lax.dynamic_slice_in_dim(before, ctx.tile_index(axis) * blocks, blocks, axis)
    return [combine(within, jnp.broadcast_to(jnp.expand_dims(before, axis + 1), within.shape))]
