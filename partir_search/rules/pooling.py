"""Reductions over sliding windows, and their gradients.

A tile of a sliding dim reads its stretch of the operand and a halo. Elements beyond the operand's
ends are masked by the identity of the reduction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from partir_search.ir.bind import bind
from partir_search.ir.core import Op
from partir_search.ir.kind import Kind
from partir_search.ir.reducers import identity
from partir_search.ir.role import Role
from partir_search.ir.rule import NONE, InputWindow, OpRule
from partir_search.rules.registry import register, result_shape, shape_of
from partir_search.rules.resizing import gradients_of_windows, windows


@dataclasses.dataclass(frozen=True, slots=True)
class _Slide:
    """Geometry of a window sliding along one dim.

    Point p reads `reach` elements from ``p * stride - low`` on.

    Attributes:
      size / out: extents of the operand's and of the result's dim.
      still: one window per element, without padding: the dim passes through.
      holes: the operand is dilated.
    """

    size: int
    out: int
    stride: int
    low: int
    reach: int
    still: bool
    holes: bool  # between the operand's elements


def _slides(op: Op, operand: int, result: int | None = None) -> list[_Slide]:
    """Geometry of the window per dim.

    Args:
      operand: position of the operand pooled.
      result: position of an operand of the pooled shape; None: the first result has it.
    """
    p = op.params
    shape = shape_of(op, operand)
    out = result_shape(op) if result is None else shape_of(op, result)
    ones = (1,) * len(shape)
    base, spread = p.get("base_dilation") or ones, p.get("window_dilation") or ones
    found = []
    for d, n in enumerate(shape):
        size, stride = p["window_dimensions"][d], p["window_strides"][d]
        low, high = p["padding"][d]
        still = size == stride == base[d] == spread[d] == 1 and low == high == 0
        reach = (size - 1) * spread[d] + 1
        found.append(
            _Slide(
                size=n,
                out=out[d],
                stride=stride,
                low=low,
                reach=reach,
                still=still,
                holes=base[d] != 1,
            )
        )
    return found


def _pooling(op: Op, slides: Sequence[_Slide], **fields: Any) -> OpRule:
    """Rule of an op whose operands and results share their dims; tiles read windows with halos."""
    dims = tuple(range(len(slides)))
    blocked = frozenset(d for d, s in enumerate(slides) if s.holes)
    arrays = [i for i, x in enumerate(op.operands) if len(x.type.shape) == len(slides)]
    return OpRule(
        Kind.REDUCTION,
        sizes=tuple(max(s.size, s.out) if s.holes else s.out for s in slides),
        operands=tuple(dims if i in arrays else () for i in range(len(op.operands))),
        results=(dims,) * len(op.results),
        reducers=("",) * len(dims),
        blocked=blocked,
        reads=tuple(
            InputWindow(i, d, s.stride, -s.low, s.reach)
            for i in arrays
            for d, s in enumerate(slides)
            if not s.still and d not in blocked
        ),
        flops_per_point=1.0,
        **fields,
    )


_WINDOW_MONOIDS = {
    "reduce_window_sum": "sum",
    "reduce_window_max": "max",
    "reduce_window_min": "min",
}


def window_monoid(op: Op) -> str:
    """Monoid of a pooling; "" for a user's function."""
    return _WINDOW_MONOIDS.get(op.prim, "")


@register(*_WINDOW_MONOIDS, "reduce_window", role=dict.fromkeys(_WINDOW_MONOIDS, Role.POOLING))
def pooling(op: Op) -> OpRule:
    """A tile of a sliding dim reads a window with a halo."""
    monoid = window_monoid(op)
    linear = ((0,),) if monoid == "sum" else ()
    resizing = windows(op, monoid) if monoid else None
    slides = _slides(op, 0)
    return _pooling(op, slides, linear=linear, local=_local_pooling, resizing=resizing)


def _local_pooling(ctx: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    dtype = args[0].dtype
    monoid = window_monoid(op)
    fillers = [identity(monoid, dtype)] if monoid else list(args[len(args) // 2 :])
    slides = _slides(op, 0)
    arrays = [_masked(ctx, slides, x, filler) for x, filler in zip(args, fillers, strict=False)]
    params = {**op.params, "padding": _padding(ctx, slides, op.params)}
    return bind(op, params, (*arrays, *args[len(arrays) :]))


def _padding(ctx: Any, slides: Sequence[_Slide], params: Mapping[str, Any]) -> Any:
    """Padding of a tile: none along dims with a halo."""
    tiled = _tiled(ctx, slides)
    return tuple((0, 0) if d in tiled else c for d, c in enumerate(params["padding"]))


def _tiled(ctx: Any, slides: Sequence[_Slide]) -> list[int]:
    return [d for d, s in enumerate(slides) if not s.still and ctx.tiles(d) > 1]


def _masked(ctx: Any, slides: Sequence[_Slide], x: Any, filler: Any) -> Any:
    """`x` with `filler` at elements of its windows beyond the ends."""
    for d in _tiled(ctx, slides):
        s = slides[d]
        points = s.out // ctx.tiles(d)
        if s.low <= 0 and (s.out - 1) * s.stride - s.low + s.reach <= s.size:
            continue
        place = lax.broadcasted_iota(jnp.int32, x.shape, d)
        place = place + ctx.tile_index(d) * (points * s.stride) - s.low
        x = jnp.where((place >= 0) & (place < s.size), x, filler)
    return x


@register("select_and_gather_add")
def pooling_tangent(op: Op) -> OpRule:
    """Tangents and the pooled operand; linear in the tangents."""
    return _pooling(op, _slides(op, 0), linear=((0,),), local=_local_tangent)


def _local_tangent(ctx: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    tangents, operand = args
    slides = _slides(op, 0)
    operand = _masked(ctx, slides, operand, _unselected(op, operand.dtype))
    params = {**op.params, "padding": _padding(ctx, slides, op.params)}
    return bind(op, params, (tangents, operand))


def _unselected(op: Op, dtype: Any) -> Any:
    """Number never selected by a window."""
    return identity("max" if op.params["select_prim"].name == "ge" else "min", dtype)


@register("select_and_scatter_add")
def pooling_gradient(op: Op) -> OpRule:
    """Cotangents and the pooled operand; linear in the cotangents, which are summed.

    Windows that overlap a tile of the result reach beyond the tile: the tile reads their cotangents
    and all elements pooled by them.
    """
    slides = _slides(op, 1, result=0)
    dims = tuple(range(len(slides)))
    sizes, reads, blocked = [], list[InputWindow](), set[int]()
    for d, s in enumerate(slides):
        first, last = _touching(s)
        sizes.append(s.out)
        if s.still:
            continue
        if s.out * s.stride != s.size and s.stride <= s.reach:
            sizes[d] = s.size
            reads += _uneven(s, d)
            continue
        if s.out * s.stride != s.size or last < first:
            sizes[d] = max(s.size, s.out)
            blocked.add(d)
            continue
        reads.append(InputWindow(0, d, 1, first, last - first + 1))
        reach = (last - first) * s.stride + s.reach
        reads.append(InputWindow(1, d, s.stride, first * s.stride - s.low, reach))
    return OpRule(
        Kind.REDUCTION,
        sizes=tuple(sizes),
        operands=(dims, dims),
        results=(dims,),
        reducers=("",) * len(dims),
        blocked=frozenset(blocked),
        reads=tuple(reads),
        flops_per_point=1.0,
        linear=((0,),),
        resizing=gradients_of_windows(op),
        local=_local_gradient,
    )


def _uneven(s: _Slide, dim: int) -> list[InputWindow]:
    """Windows of tiles that begin at any element.

    They cover the cotangents of all pooling windows that overlap a tile, and the elements of these
    pooling windows, the first of which may begin up to ``stride - 1`` later.
    """
    first = _first(s)
    width = (s.stride - 1 + s.low) // s.stride - first + 1
    start = 1 - s.stride + first * s.stride - s.low
    reach = 2 * (s.stride - 1) + (width - 1) * s.stride + s.reach
    return [
        InputWindow(0, dim, 1, first, width, over=s.stride),
        InputWindow(1, dim, 1, start, reach),
    ]


def _first(s: _Slide) -> int:
    """First pooling window that overlaps a tile, relative to the one that begins with the tile."""
    return (s.low - s.reach + 1) // s.stride


def _touching(s: _Slide) -> tuple[int, int]:
    """First and last pooling window that overlap the first `stride` elements."""
    return -((s.reach - 1 - s.low) // s.stride), (s.stride - 1 + s.low) // s.stride


def _local_gradient(ctx: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    cotangents, operand = args
    slides = _slides(op, 1, result=0)
    unpadded, unselected = op.params.get("unpadded"), _unselected(op, args[1].dtype)
    tiled, cuts = _tiled(ctx, slides), list[tuple[int, Any]]()
    if unpadded:  # dims are padded
        for d in range(operand.ndim):
            if d not in tiled and not slides[d].still:
                operand = lax.slice_in_dim(operand, 0, unpadded[d][0], axis=d)
                cotangents = lax.slice_in_dim(cotangents, 0, unpadded[d][1], axis=d)
    for d in tiled:
        s = slides[d]
        size = unpadded[d][0] if unpadded else s.size
        if s.out * s.stride != s.size:
            tile = s.size // ctx.tiles(d)
            begin = ctx.tile_index(d) * tile
            start = begin + 1 - s.stride + _first(s) * s.stride - s.low
            place = lax.broadcasted_iota(jnp.int32, operand.shape, d) + start
            operand = jnp.where((place >= 0) & (place < size), operand, unselected)
            length, late = (cotangents.shape[d] - 1) * s.stride + s.reach, begin % s.stride
            operand = lax.dynamic_slice_in_dim(operand, s.stride - 1 - late, length, d)
            cuts.append((d, late - _first(s) * s.stride + s.low))
            continue
        first, last = _touching(s)
        start = first * s.stride - s.low
        cuts.append((d, s.low - first * s.stride))
        if start >= 0 and (s.out - 1 + last) * s.stride - s.low + s.reach <= size:
            continue
        place = lax.broadcasted_iota(jnp.int32, operand.shape, d)
        place = place + ctx.tile_index(d) * (s.size // ctx.tiles(d)) + start
        inside = (place >= 0) & (place < size)
        operand = jnp.where(inside, operand, unselected)
    params = {**op.params, "padding": _padding(ctx, slides, op.params)}
    params.pop("unpadded", None)
    (out,) = bind(op, params, (cotangents, operand))
    for d, before in cuts:
        out = lax.dynamic_slice_in_dim(out, before, slides[d].size // ctx.tiles(d), d)
    if unpadded:
        for d, s in enumerate(slides):
            if d not in tiled and not s.still:
                config = [(0, s.size - n if e == d else 0, 0) for e, n in enumerate(out.shape)]
                out = lax.pad(out, jnp.zeros((), out.dtype), config)
    return [out]


@register("select_and_scatter")
def general_pooling_gradient(op: Op) -> OpRule:
    """Loops over dims without sliding windows."""
    slides = _slides(op, 0, result=1)
    dims = tuple(NONE if not s.still else d for d, s in enumerate(slides))
    return OpRule(
        Kind.REDUCTION,
        sizes=tuple(max(s.size, s.out) for s in slides),
        operands=(dims, dims, ()),
        results=(dims,),
        reducers=tuple("" if s.still else "sum" for s in slides),
        blocked=frozenset(d for d, s in enumerate(slides) if not s.still),
        flops_per_point=1.0,
    )
