"""Convolutions.

A tile of a sliding dim reads its stretch of the image and a halo. A window of one pixel does not
slide: its dims pass through. A window as large as the image is contracted with it, as in a matmul.
If a large window is multiplied with a large image (the gradient of a kernel), a tile of the window
reads its stretch of the image, and the result is summed.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from partir_search.ir.bind import bind
from partir_search.ir.boundaries import ZERO, Beyond, taken
from partir_search.ir.core import Op, Shape
from partir_search.ir.halos import HaloedTile
from partir_search.ir.kind import Kind
from partir_search.ir.local_context import LocalContext
from partir_search.ir.local_op import local_result_shapes
from partir_search.ir.role import Role
from partir_search.ir.rule import NONE, InputWindow, OpRule
from partir_search.rules.halves import in_halves
from partir_search.rules.registry import register, result_shape, shape_of
from partir_search.rules.resizing import convolutions

WIDE = 4  # bytes per element from which sums may be rounded one by one


@register("conv_general_dilated", role=Role.CONVOLUTION)
def convolution(op: Op) -> OpRule:
    """Batch, output features, summed input features, and groups of features or of the batch.

    All gradients of a convolution are convolutions: the kernel's gradient sums over the batch, by
    its `dimension_numbers`. Features inside of a group are not tiled.
    """
    p, dn = op.params, op.params["dimension_numbers"]
    lhs, rhs = shape_of(op, 0), shape_of(op, 1)
    out = op.results[0].type.shape
    lhs_dims, rhs_dims, out_dims = [NONE] * len(lhs), [NONE] * len(rhs), [NONE] * len(out)
    sizes: list[int] = []
    reducers: list[str] = []
    blocked: set[int] = set()

    def factor(size: int, *places: tuple[list[int], int], reducer: str = "") -> int:
        sizes.append(size)
        reducers.append(reducer)
        for dims, dim in places:
            dims[dim] = len(sizes) - 1
        return len(sizes) - 1

    def inner(size: int) -> None:
        """Adds a factor of work done in full by every tile."""
        blocked.add(factor(size, reducer="sum"))

    batch, features = (lhs_dims, dn.lhs_spec[0]), (lhs_dims, dn.lhs_spec[1])
    kernel_out, kernel_in = (rhs_dims, dn.rhs_spec[0]), (rhs_dims, dn.rhs_spec[1])
    out_batch, out_features = (out_dims, dn.out_spec[0]), (out_dims, dn.out_spec[1])
    channels = rhs[dn.rhs_spec[0]]
    if p["feature_group_count"] > 1:
        groups = p["feature_group_count"]
        factor(lhs[dn.lhs_spec[0]], batch, out_batch)
        factor(groups, features, kernel_out, out_features)
        inner(channels // groups * rhs[dn.rhs_spec[1]])
    elif p["batch_group_count"] > 1:
        groups = p["batch_group_count"]
        factor(groups, batch, kernel_out, out_features)
        factor(lhs[dn.lhs_spec[1]], features, kernel_in, reducer="sum")
        inner(lhs[dn.lhs_spec[0]] // groups * (channels // groups))
    else:
        factor(lhs[dn.lhs_spec[0]], batch, out_batch)
        factor(channels, kernel_out, out_features)
        factor(lhs[dn.lhs_spec[1]], features, kernel_in, reducer="sum")
    work = 1.0  # products per point
    reads: list[InputWindow] = []
    for i, (d, k, o) in enumerate(
        zip(dn.lhs_spec[2:], dn.rhs_spec[2:], dn.out_spec[2:], strict=True)
    ):
        slide = _slide(op, i)
        if slide.still and rhs[k] == 1:
            factor(lhs[d], (lhs_dims, d), (out_dims, o))
        elif slide.still and out[o] == 1:
            factor(lhs[d], (lhs_dims, d), (rhs_dims, k), reducer="sum")
        elif slide.points:
            second = (rhs_dims, k) if slide.along_window else (out_dims, o)
            factor(slide.points, (lhs_dims, d), second, reducer="sum" * slide.along_window)
            reads.append(
                InputWindow(
                    *(0, d, slide.step, slide.first, slide.width),
                    beyond=_beyond(op, i, lhs[d]),
                    over=slide.over,
                )
            )
            work *= slide.touches / slide.points
        else:
            inner(slide.touches)
    return OpRule(
        Kind.CONTRACTION,
        sizes=tuple(sizes),
        operands=(tuple(lhs_dims), tuple(rhs_dims)),
        results=(tuple(out_dims),),
        reducers=tuple(reducers),
        blocked=frozenset(blocked),
        reads=tuple(reads),
        linear=((0,), (1,)),
        tolerates_padding=p["feature_group_count"] == p["batch_group_count"] == 1,
        resizing=convolutions(op),
        features=_features(op),
        window_elements=_window_elements(op),
        image_holes=math.prod(p["lhs_dilation"]),
        unsplit_pixels=_unsplit_pixels(op),
        grouped_window=p["feature_group_count"] > 1 or p["batch_group_count"] > 1,
        explicit_padding=_explicit_padding(op),
        accepts_haloed_tile=op.results[0].type.itemsize >= WIDE,
        flops_per_point=2.0 * work,
        local=_local,
        implied_params=_told(op),
    )


def _features(op: Op) -> tuple[int, ...]:
    """Factors of the features of a convolution; () if there are groups.

    In the gradient of a kernel, whose window is larger than its result, the batch stands in the
    place of the input's features.
    """
    p = op.params
    if p["feature_group_count"] > 1 or p["batch_group_count"] > 1:
        return ()
    batch, channels, features = range(3)
    return (batch if _is_window_gradient(op) else features), channels


def _pixels(op: Op) -> int:
    """Elements of a convolution's result per example and feature."""
    out = op.results[0].type.shape
    return math.prod(out[d] for d in op.params["dimension_numbers"].out_spec[2:])


def _is_window_gradient(op: Op) -> bool:
    """True for a convolution whose window is larger than its result."""
    window, dn = shape_of(op, 1), op.params["dimension_numbers"]
    elements: int = math.prod(window[d] for d in dn.rhs_spec[2:])
    return elements > _pixels(op)


def _window_elements(op: Op) -> tuple[int, int]:
    """Elements of a window with the holes, and without.

    (1, 1) for the gradient of a window, and for an image without holes whose ends are padded alike.
    """
    if _is_window_gradient(op) or _explicit_padding(op) == 1.0:
        return 1, 1
    p, window = op.params, shape_of(op, 1)
    sides = [window[d] for d in p["dimension_numbers"].rhs_spec[2:]]
    filled = [(n - 1) * spread + 1 for n, spread in zip(sides, p["rhs_dilation"], strict=True)]
    return max(math.prod(filled), 1), max(math.prod(sides), 1)


def _unsplit_pixels(op: Op) -> int:
    """Pixels of the gradient of a window that strides, or of an image with holes; 0 otherwise.

    A window with holes strides in the gradient.
    """
    p = op.params
    plain = {*p["window_strides"], *p["lhs_dilation"]} == {1}
    return 0 if plain or not _is_window_gradient(op) else _pixels(op)


def _explicit_padding(op: Op) -> float:
    """Elements of a padded image over elements of the image; 1.0 if both ends are padded alike."""
    p, lhs = op.params, shape_of(op, 0)
    ends, holes = p["padding"], p["lhs_dilation"]
    if all(low == high for low, high in ends) and set(holes) == {1}:
        return 1.0
    dims = zip(p["dimension_numbers"].lhs_spec[2:], ends, holes, strict=True)
    sizes = [
        ((lhs[d] - 1) * hole + 1 + max(low, 0) + max(high, 0)) / max(lhs[d], 1)
        for d, (low, high), hole in dims
    ]
    return float(math.prod(sizes))


def _told(op: Op) -> frozenset[str]:
    """Parameters equal to a plain convolution's.

    Plain: strides and dilations of one, no padding, one group, features last.
    """
    p, n = op.params, len(op.results[0].type.shape)
    dn, space = p["dimension_numbers"], tuple(range(1, n - 1))
    plain = {
        "window_strides": set(p["window_strides"]) == {1},
        "lhs_dilation": set(p["lhs_dilation"]) == {1},
        "rhs_dilation": set(p["rhs_dilation"]) == {1},
        "padding": not any(n for pair in p["padding"] for n in pair),
        "feature_group_count": p["feature_group_count"] == 1,
        "batch_group_count": p["batch_group_count"] == 1,
        "dimension_numbers": dn.lhs_spec == dn.out_spec == (0, n - 1, *space)
        and dn.rhs_spec == (n - 1, n - 2, *(d - 1 for d in space)),
    }
    return frozenset(name for name, is_plain in plain.items() if is_plain)


def _ends(op: Op, i: int) -> tuple[str, str]:
    """Boundary modes of both ends of the image along window dim `i`."""
    ends = op.params.get("ends")
    return ends[i] if ends else (ZERO, ZERO)


def _beyond(op: Op, i: int, extent: int) -> Beyond | None:
    ends = _ends(op, i)
    return None if ends == (ZERO, ZERO) else Beyond(extent, *ends)


@dataclasses.dataclass(frozen=True, slots=True)
class _Slide:
    """Geometry of a window sliding along one dim.

    Point p of the result and element q of the window are multiplied with position ``p * stride + q
    * spread - low`` of the image, dilated by ``holes``. Along the result (or along the window, if
    larger) points are elements, or blocks of elements with equal windows.

    Attributes:
      still: every window is the image itself.
      along_window: the factor is a dim of the window.
      touches: products of an element of the window and a pixel, without padding and dilation holes.
      points: extent of the factor; 0 if the dim must be whole.
      step / over / first / width: window read by a point (`InputWindow`).
    """

    still: bool
    along_window: bool
    touches: int
    points: int
    step: int
    over: int
    first: int
    width: int


def _slide(op: Op, i: int) -> _Slide:
    p, dn = op.params, op.params["dimension_numbers"]
    image = shape_of(op, 0)[dn.lhs_spec[2 + i]]
    window = shape_of(op, 1)[dn.rhs_spec[2 + i]]
    out = op.results[0].type.shape[dn.out_spec[2 + i]]
    stride, spread = p["window_strides"][i], p["rhs_dilation"][i]
    holes, (low, high) = p["lhs_dilation"][i], p["padding"][i]
    along_window = window > out
    extent, pace, other, reach = out, stride, window, spread
    if along_window:
        extent, pace, other, reach = window, spread, out, stride
    block = holes // math.gcd(holes, pace)
    first = -(low // holes)
    last = (pace * (block - 1) + reach * (other - 1) - low) // holes
    single = pace == 1 and not along_window  # tiles may begin at any element
    fits = single or extent % block == 0
    return _Slide(
        still=stride == spread == holes == 1 and (low, high) == (0, 0),
        along_window=along_window,
        touches=_touches(image, window, out, i, p),
        points=extent // (1 if single else block) if fits and last >= first else 0,
        step=1 if single else pace * block // holes,
        over=holes if single else 1,
        first=first,
        width=last - first + 1,
    )


def _touches(image: int, window: int, out: int, i: int, p: Mapping[str, Any]) -> int:
    """Products of an element of the window and a pixel, without padding and dilation holes."""
    low, high = map(int, p["padding"][i])  # jax may give numpy's integers
    if p.get("ends") and p["ends"][i] != (ZERO, ZERO):  # padding by elements, not zeros
        image, low = image + low + high, 0
    stride, spread = int(p["window_strides"][i]), int(p["rhs_dilation"][i])
    (few, step), (many, other) = sorted([(window, spread), (out, stride)])
    holes = int(p["lhs_dilation"][i])
    met = sum(_multiples(k * step - low, other, many, holes, image) for k in range(few))
    return max(met, 1)


def _multiples(first: int, step: int, count: int, period: int, limit: int) -> int:
    """Number of multiples of `period` in ``[0, limit * period)`` among `count` numbers.

    Args:
      first: the first number.
      step: distance of two numbers, positive.
    """
    common = math.gcd(step, period)
    if first % common:
        return 0
    each = period // common  # numbers from one multiple to the next
    at = -first // common * pow(step // common, -1, each) % each
    begin = max(0, -(first // step))
    end = min(count, (limit * period - 1 - first) // step + 1)
    return max((end - 1 - at) // each - (begin - 1 - at) // each, 0)


def _local(ctx: LocalContext, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    rule = convolution(op)
    made = list(local_result_shapes(ctx, rule, op)[0])
    image, window = args
    dn, starts = op.params["dimension_numbers"], dict[int, Any]()
    tiled = _tiled(op, window.shape, tuple(made))
    for i in tiled:
        o, holes = dn.out_spec[2 + i], op.params["lhs_dilation"][i]
        if _slide(op, i).over > 1 and made[o] % holes:  # computes elements before the tile too
            starts[o] = ctx.tile_index(rule.results[0][o]) * made[o] % holes, made[o]
            made[o] += holes - 1
    params = _localize(op, tiled, [x.shape for x in args], made)
    padding = list(params["padding"])
    for i, d in enumerate(dn.lhs_spec[2:]):
        f = rule.operands[0][d]
        if (beyond := _beyond(op, i, image.shape[d])) and (f == NONE or ctx.tiles(f) == 1):
            low, high = padding[i]
            around = functools.partial(
                taken, dim=d, start=-low, size=image.shape[d] + low + high, beyond=beyond
            )
            image = image.map_pieces(around) if isinstance(image, HaloedTile) else around(image)
            padding[i] = (0, 0)
    params["padding"] = tuple(padding)
    convolve = functools.partial(_convolve, op)
    halves = isinstance(image, HaloedTile)
    out = (functools.partial(in_halves, convolve) if halves else convolve)(params, image, window)
    for o, (start, size) in starts.items():
        out = lax.dynamic_slice_in_dim(out, start, size, o)
    return [out]


def _tiled(op: Op, window: Shape, out: Shape) -> list[int]:
    """Positions of the window dims that are tiled here."""
    dn, found = op.params["dimension_numbers"], []
    for i, (k, o) in enumerate(zip(dn.rhs_spec[2:], dn.out_spec[2:], strict=True)):
        slide = _slide(op, i)
        whole = op.operands[1].type.shape[k] if slide.along_window else result_shape(op)[o]
        if (window[k] if slide.along_window else out[o]) != whole and not slide.still:
            found.append(i)
    return found


def _convolve(op: Op, params: Mapping[str, Any], image: Any, window: Any) -> Any:
    padding = list(params["padding"])
    for i, k in enumerate(params["dimension_numbers"].rhs_spec[2:]):
        # XLA mistakes this dim for a dim of groups when it swaps the operands, and aborts (jaxlib
        # 0.10 and 0.12); one more element of the window, a zero, avoids the swap.
        if (
            padding[i] == (0, 0)
            and params["rhs_dilation"][i] == 1
            and params["lhs_dilation"][i] == window.shape[k] == params["window_strides"][i] + 1
        ):
            config = [(0, int(d == k), 0) for d in range(window.ndim)]
            window = lax.pad(window, jnp.zeros((), window.dtype), config)
            padding[i] = (0, 1)
    (out,) = bind(op, {**params, "padding": tuple(padding)}, [image, window])
    return out


def _localize(
    op: Op, tiled: Sequence[int], operands: Sequence[Shape], out: Sequence[int]
) -> dict[str, Any]:
    """Params of a tile: fewer groups of the same size, and halos in place of padding.

    Args:
      tiled: positions of the window dims with halos.
      out: local shape of the result.
    """
    params, (lhs, rhs) = op.params, operands
    dn, new = params["dimension_numbers"], dict(params)
    if params["feature_group_count"] > 1:
        new["feature_group_count"] = lhs[dn.lhs_spec[1]] // rhs[dn.rhs_spec[1]]
    if params["batch_group_count"] > 1:
        new["batch_group_count"] = lhs[dn.lhs_spec[0]] // out[dn.out_spec[0]]
    padding = list(params["padding"])
    for i in tiled:
        d, k, o = dn.lhs_spec[2 + i], dn.rhs_spec[2 + i], dn.out_spec[2 + i]
        holes = params["lhs_dilation"][i]
        low = padding[i][0] % holes
        stride, spread = params["window_strides"][i], params["rhs_dilation"][i]
        reach = (out[o] - 1) * stride + (rhs[k] - 1) * spread
        padding[i] = (low, reach - low - (lhs[d] - 1) * holes)
    new["padding"] = tuple(padding)
    return new
