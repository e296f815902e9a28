"""Primitives that shift elements along a dim: slices, reversal, padding, concatenation.

A tile of their result reads a window of the operand different from the tile of the same number.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from partir_search.ir.bind import bind
from partir_search.ir.core import Literal, Op, Shape
from partir_search.ir.kind import Kind
from partir_search.ir.local_op import local_result_shapes
from partir_search.ir.role import Role
from partir_search.ir.rule import NONE, InputWindow, OpRule
from partir_search.rules.registry import register, result_shape, shape_of
from partir_search.rules.resizing import SLICE, STRIDED, pads
from partir_search.rules.shape import identity

Params = Mapping[str, Any]

LITTLE = 1 / 8  # fraction of a dim: for smaller shifts most of a window is the device's own tile
FEW = 4  # elements, too few to tile
MOST_JOINED = 8  # operands of a concatenation with windows: a tile reads a window of each


@register("rev", role=Role.REVERSAL)
def rev(op: Op) -> OpRule:
    """A tile of a reversed dim reads its mirror image."""
    shape = result_shape(op)
    mirrored = [
        InputWindow(0, d, -1, shape[d] - 1, propagates_both_ways=False)
        for d in op.params["dimensions"]
    ]
    return windowed_rule(op, mirrored)


@register("slice", role=Role.SLICE)
def slice_(op: Op) -> OpRule:
    """A tile of a cut dim reads the window it is cut from; few elements are partial sums.

    At most `FEW` elements of a dim lie in one tile: all further tiles add zeros.
    """
    shape, result = shape_of(op, 0), result_shape(op)
    starts, strides = op.params["start_indices"], op.params["strides"] or (1,) * len(shape)
    cut = [d for d in range(len(shape)) if shape[d] != result[d]]
    few = [d for d in cut if _is_few(op, d)]

    def localize(p: Params, operands: Sequence[Shape], results: Sequence[Shape]) -> dict[str, Any]:
        tiled = {d for d in cut if results[0][d] != result[d]}
        limits = [
            p["limit_indices"][d] if d in cut and d not in tiled else n
            for d, n in enumerate(operands[0])
        ]
        return {
            **p,
            "start_indices": tuple(0 if d in tiled else n for d, n in enumerate(starts)),
            "limit_indices": tuple(limits),
        }

    reads = [_window(0, d, strides[d], starts[d], shape[d], result[d]) for d in cut if d not in few]
    plain = all(strides[d] == 1 for d in range(len(shape)))
    resizing = None if few else SLICE if plain else STRIDED
    told = frozenset({"limit_indices"})
    rule = windowed_rule(op, reads, localize=localize, resizing=resizing, implied_params=told)
    if not few:
        return rule if plain else dataclasses.replace(rule, local=_local_strided)
    return dataclasses.replace(
        rule,
        sizes=tuple(shape[d] if d in few else n for d, n in enumerate(result)),
        results=(tuple(NONE if d in few else d for d in range(len(result))),),
        reducers=tuple("sum" if d in few else "" for d in range(len(result))),
        local=functools.partial(_local_few, few, localize),
    )


def _local_strided(ctx: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """Strided elements of a window; zeros beyond the end of the operand."""
    (x,), p, (result,) = args, op.params, local_result_shapes(ctx, slice_(op), op)
    starts, strides = list(p["start_indices"]), p["strides"]
    for d, (n, m) in enumerate(zip(op.operands[0].type.shape, result_shape(op), strict=True)):
        if n != m and m != result[d]:
            starts[d] = 0
    spans = [(m - 1) * k + 1 if m else 0 for m, k in zip(result, strides, strict=True)]
    ends = [s + span for s, span in zip(starts, spans, strict=True)]
    longer = [max(end - n, 0) for end, n in zip(ends, x.shape, strict=True)]
    if any(longer):
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, more, 0) for more in longer])
    return [lax.slice(x, starts, ends, strides)]


def _is_few(op: Op, dim: int) -> bool:
    shape, result = shape_of(op, 0), result_shape(op)
    numbers = jnp.issubdtype(op.results[0].type.dtype, np.number)
    stride = (op.params["strides"] or (1,) * len(shape))[dim]
    return numbers and stride == 1 and result[dim] <= FEW and result[dim] <= LITTLE * shape[dim]


def _local_few(
    few: Sequence[int], localize: Any, ctx: Any, op: Op, args: Sequence[Any]
) -> Sequence[Any]:
    """Elements of a short slice inside of this tile; zeros for all further ones."""
    (x,), result, starts = args, result_shape(op), op.params["start_indices"]
    for d in few:
        if ctx.tiles(d) > 1:
            at = starts[d] - ctx.tile_index(d) * x.shape[d]
            config = [(0, 0, 0)] * x.ndim
            config[d] = (result[d], result[d], 0)
            x = lax.pad(x, jnp.zeros((), x.dtype), config)
            at = jnp.clip(at + result[d], 0, x.shape[d] - result[d])
            x = lax.dynamic_slice_in_dim(x, at, result[d], d)
    made = tuple(n if d in few else n // ctx.tiles(d) for d, n in enumerate(result))
    whole = [
        shape_of(op, 0)[d] if d in few and ctx.tiles(d) == 1 else n for d, n in enumerate(x.shape)
    ]
    params = localize(op.params, [tuple(whole)], [made])
    params["start_indices"] = tuple(
        0 if d in few and ctx.tiles(d) > 1 else n for d, n in enumerate(params["start_indices"])
    )
    params["limit_indices"] = tuple(
        result[d] if d in few and ctx.tiles(d) > 1 else n
        for d, n in enumerate(params["limit_indices"])
    )
    return bind(op, params, (x,))


def _window(operand: int, dim: int, step: int, first: int, extent: int, points: int) -> InputWindow:
    """Window; tilings propagate both ways if both ends are shifted by at most `LITTLE`."""
    off = max(abs(first), abs(step * points + first - extent))
    return InputWindow(operand, dim, step, first, propagates_both_ways=off <= LITTLE * extent)


def windowed_rule(op: Op, reads: Sequence[InputWindow], **fields: Any) -> OpRule:
    """Rule of an op whose operands and result share their dims, with tiles that read windows.

    Args:
      reads: windows of the dims not read tile by tile.
      fields: fields of the rule different from a shift's.
    """
    result = result_shape(op)
    every = tuple(range(len(op.operands)))
    keys = jnp.issubdtype(op.results[0].type.dtype, jax.dtypes.extended)  # are not padded
    shift: dict[str, Any] = {
        "elementwise": True,
        "monotone": (("max", every), ("min", every)),
    }
    return OpRule(
        Kind.MOVEMENT,
        sizes=result,
        operands=(tuple(range(len(result))),) * len(op.operands),
        results=(tuple(range(len(result))),),
        reducers=("",) * len(result),
        blocked=frozenset(r.dim for r in reads) if keys else frozenset(),
        reads=() if keys else tuple(reads),
        linear=(every,),
        **{**shift, **fields},
    )


@register("concatenate", role=Role.CONCATENATION)
def concatenate(op: Op) -> OpRule:
    """A tile of the joined dim reads its stretch of each operand."""
    dim = op.params["dimension"]
    extents = [x.type.shape[dim] for x in op.operands]
    if len(extents) > MOST_JOINED:
        every = tuple(range(len(extents)))
        return identity(op, frozenset({dim}), linear=(every,))
    ends = list(itertools.accumulate(extents))
    reads = [
        InputWindow(i, dim, 1, n - end)
        for i, (n, end) in enumerate(zip(extents, ends, strict=True))
    ]
    return windowed_rule(op, reads, local=functools.partial(_local_join, dim, ends))


def _local_join(
    dim: int, ends: Sequence[int], ctx: Any, op: Op, args: Sequence[Any]
) -> Sequence[Any]:
    """Tile of the concatenation: at each position, the element of the operand it comes from."""
    if ctx.tiles(dim) == 1:
        return bind(op, op.params, args)
    out = args[-1]
    place = lax.broadcasted_iota(jnp.int32, out.shape, dim)
    place = place + ctx.tile_index(dim) * out.shape[dim]
    for x, end in reversed(list(zip(args[:-1], ends[:-1], strict=True))):
        out = jnp.where(place < end, x, out)
    return [out]


@register("pad", role=Role.PADDING)
def pad(op: Op) -> OpRule:
    """A tile of a padded dim reads its stretch of the operand. Linear for zero padding."""
    shape, result = shape_of(op, 0), result_shape(op)
    filler = op.operands[1]
    zero = isinstance(filler, Literal) and filler.is_zero()
    operand, reads = list(range(len(result))), []
    for d, config in enumerate(op.params["padding_config"]):
        low, high, inner = map(int, config)  # jax may give numpy's integers
        if not (low or high or inner):
            continue
        if shape[d] == 0:
            operand[d] = NONE
        else:
            first, points = -(low // (inner + 1)), -(-result[d] // (inner + 1))
            found = _window(0, d, 1, first, shape[d], points)
            reads.append(dataclasses.replace(found, over=inner + 1))
    return OpRule(
        Kind.MOVEMENT,
        sizes=result,
        operands=(tuple(operand), ()),
        results=(tuple(range(len(result))),),
        reducers=("",) * len(result),
        reads=tuple(reads),
        linear=((0,),) if zero else (),
        elementwise=True,
        resizing=pads(op),
        localize=_longer_end,
        local=functools.partial(_local_pad, frozenset(r.dim for r in reads), zero),
    )


def _longer_end(
    params: Params, operands: Sequence[Shape], results: Sequence[Shape]
) -> dict[str, Any]:
    """Params with the end padding changed to give the result's shape."""
    config = []
    for n, m, (low, _, inner) in zip(
        operands[0], results[0], params["padding_config"], strict=True
    ):
        config.append((low, m - low - n - max(n - 1, 0) * inner, inner))
    return {**params, "padding_config": tuple(config)}


def _local_pad(
    with_window: frozenset[int], zero: bool, ctx: Any, op: Op, args: Sequence[Any]
) -> Sequence[Any]:
    """Tile of the padded array, from a window of the operand or from all of it."""
    x, filler = args
    config = list(op.params["padding_config"])
    tiled = [d for d, c in enumerate(config) if any(c) and ctx.tiles(d) > 1]
    starts: dict[int, Any] = {}  # first element of the tile in the padded window
    for d in with_window.intersection(tiled):
        low, _, inner = config[d]
        tile, each = result_shape(op)[d] // ctx.tiles(d), inner + 1
        low %= each
        if tile % each:  # the first element of a window has a different position in each tile
            starts[d] = inner - low + ctx.tile_index(d) * tile % each
            tile, low = tile + 2 * inner, inner
        config[d] = (low, tile - low - (x.shape[d] - 1) * each - 1, inner)
    (out,) = bind(op, {**op.params, "padding_config": tuple(config)}, (x, filler))
    for d in tiled:
        tile = result_shape(op)[d] // ctx.tiles(d)
        if d in starts:
            out = lax.dynamic_slice_in_dim(out, starts[d], tile, d)
        if d not in with_window:
            out = lax.dynamic_slice_in_dim(out, ctx.tile_index(d) * tile, tile, d)
        elif not zero:  # beyond the operand's ends the window is zero
            low, _, inner = op.params["padding_config"][d]
            place = lax.broadcasted_iota(jnp.int32, out.shape, d) + ctx.tile_index(d) * tile - low
            inside = (place >= 0) & (place < shape_of(op, 0)[d] * (inner + 1))
            out = jnp.where(inside, out, filler)
    return [out]
