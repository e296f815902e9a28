"""Convolutions, pooling and its gradients.

Spatial dims that windows slide over stay whole. A window of one pixel slides over nothing: its
dims pass through; one that covers the image contracts it, as matmuls do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from partir_search.ir.core import Op, Shape
from partir_search.ir.rule import NONE, OpRule
from partir_search.propagation.rules.registry import register, shape_of


@register("conv_general_dilated")
def convolution(op: Op) -> OpRule:
    """Batch, features out, features in (which sum), and groups of features or of the batch.

    All gradients of a convolution are convolutions: that of the kernel sums over the batch, as its
    `dimension_numbers` say. Inside a group the features stay whole.
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
        """Work that every tile does in full."""
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
    for i, (d, k, o) in enumerate(
        zip(dn.lhs_spec[2:], dn.rhs_spec[2:], dn.out_spec[2:], strict=True)
    ):
        plain = p["window_strides"][i] == p["lhs_dilation"][i] == p["rhs_dilation"][i] == 1
        plain = plain and tuple(p["padding"][i]) == (0, 0)
        if plain and rhs[k] == 1:
            factor(lhs[d], (lhs_dims, d), (out_dims, o))
        elif plain and out[o] == 1:
            factor(lhs[d], (lhs_dims, d), (rhs_dims, k), reducer="sum")
        else:
            inner(_touches(lhs[d], rhs[k], out[o], i, p))
    return OpRule(
        sizes=tuple(sizes),
        operands=(tuple(lhs_dims), tuple(rhs_dims)),
        results=(tuple(out_dims),),
        reducers=tuple(reducers),
        blocked=frozenset(blocked),
        linear=((0,), (1,)),
        pads=p["feature_group_count"] == p["batch_group_count"] == 1,
        flops_per_point=2.0,
        localize=_local_groups,
    )


def _touches(image: int, window: int, out: int, i: int, p: Mapping[str, Any]) -> int:
    """Pairs of a window's element and a pixel that it meets: not padding, no hole of dilation."""
    met = 0
    for k in range(window):
        start = k * p["rhs_dilation"][i] - p["padding"][i][0]
        at = (start + o * p["window_strides"][i] for o in range(out))
        dilation = p["lhs_dilation"][i]
        met += sum(a % dilation == 0 and 0 <= a // dilation < image for a in at)
    return max(met, 1)


def _local_groups(
    params: Mapping[str, Any], operands: Sequence[Shape], results: Sequence[Shape]
) -> dict[str, Any]:
    """Fewer groups of the same size, where groups are tiled."""
    dn, lhs, out = params["dimension_numbers"], operands[0], results[0]
    new = dict(params)
    if params["feature_group_count"] > 1:
        new["feature_group_count"] = lhs[dn.lhs_spec[1]] // operands[1][dn.rhs_spec[1]]
    if params["batch_group_count"] > 1:
        new["batch_group_count"] = lhs[dn.lhs_spec[0]] // out[dn.out_spec[0]]
    return new


def _pooling(op: Op, slides: Sequence[bool], **fields: Any) -> OpRule:
    """All operands and results share their dims; those that the window slides over stay whole."""
    shape = shape_of(op, 0)
    out = op.results[0].type.shape
    dims = tuple(NONE if s else d for d, s in enumerate(slides))
    work = tuple(max(n, m) if s else n for n, m, s in zip(shape, out, slides, strict=True))
    return OpRule(
        sizes=work,
        operands=tuple(dims if len(x.type.shape) == len(shape) else () for x in op.operands),
        results=(dims,) * len(op.results),
        reducers=tuple("sum" if s else "" for s in slides),
        blocked=frozenset(d for d, s in enumerate(slides) if s),
        flops_per_point=1.0,
        **fields,
    )


def _slides(p: Mapping[str, Any]) -> list[bool]:
    rank = len(p["window_dimensions"])
    ones = (1,) * rank
    steps = [p["window_dimensions"], p["window_strides"]]
    steps += [p.get("base_dilation") or ones, p.get("window_dilation") or ones]
    return [
        any(step[d] != 1 for step in steps) or tuple(p["padding"][d]) != (0, 0) for d in range(rank)
    ]


@register("reduce_window_sum", "reduce_window_max", "reduce_window_min", "reduce_window")
def pooling(op: Op) -> OpRule:
    """Tiles the dims that the window does not slide over."""
    linear = ((0,),) if op.prim == "reduce_window_sum" else ()
    return _pooling(op, _slides(op.params), linear=linear)


@register("select_and_scatter_add", "select_and_scatter")
def pooling_gradient(op: Op) -> OpRule:
    """Cotangents and the pooled operand; linear in the cotangents where these are added up."""
    linear = ((0,),) if op.prim == "select_and_scatter_add" else ()
    return _pooling(op, _slides(op.params), linear=linear)


@register("select_and_gather_add")
def pooling_tangent(op: Op) -> OpRule:
    """Tangents and the pooled operand; linear in the tangents."""
    return _pooling(op, _slides(op.params), linear=((0,),))
