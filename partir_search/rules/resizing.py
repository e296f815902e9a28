"""Forms of slices, pads, shifts and windows on padded dims (see `passes.pad`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jax import lax

from partir_search.ir.core import Literal, Op, Shape
from partir_search.ir.reducers import number_of
from partir_search.ir.rule import Resizing
from partir_search.rules.registry import result_shape, shape_of


def resized_slice(op: Op, operands: Sequence[Shape], results: Sequence[Shape]) -> Op:
    """A slice; a pad, possibly with negative padding, if the result ends beyond the operand."""
    x, starts = op.operands[0], op.params["start_indices"]
    ends = tuple(s + m for s, m in zip(starts, results[0], strict=True))
    if all(end <= n for end, n in zip(ends, operands[0], strict=True)):
        return dataclasses.replace(op, params={**op.params, "limit_indices": ends}, key=None)
    kind = dataclasses.replace(x.type, shape=())
    zero = Literal(number_of(0, x.type.dtype), kind)
    config = tuple(
        (-s, m + s - n, 0) for n, m, s in zip(operands[0], results[0], starts, strict=True)
    )
    return dataclasses.replace(
        op,
        prim=lax.pad_p.name,
        handle=lax.pad_p,
        operands=(x, zero),
        params={"padding_config": config},
        key=None,
    )


SLICE = Resizing(resized_slice)


def resized_strides(op: Op, operands: Sequence[Shape], results: Sequence[Shape]) -> Op:
    """A strided slice, with zeros beyond the end of the operand."""
    starts, strides = op.params["start_indices"], op.params["strides"]
    ends = tuple(s + (m - 1) * k + 1 for s, m, k in zip(starts, results[0], strides, strict=True))
    return dataclasses.replace(op, params={**op.params, "limit_indices": ends}, key=None)


STRIDED = Resizing(resized_strides)


def resized_pad(op: Op, operands: Sequence[Shape], results: Sequence[Shape]) -> Op:
    """A pad with more or less padding at the end."""
    config = []
    for n, m, (low, _, inner) in zip(
        operands[0], results[0], op.params["padding_config"], strict=True
    ):
        config.append((low, m - low - n - max(n - 1, 0) * inner, inner))
    return dataclasses.replace(op, params={"padding_config": tuple(config)}, key=None)


def pads(op: Op) -> Resizing:
    """Resizing of a pad; extents are fixed for a filler other than zero."""
    config, filler = op.params["padding_config"], op.operands[1]
    zero = isinstance(filler, Literal) and filler.is_zero()
    fixed = {(0, d) for d in range(len(config)) if not zero}
    masked = {(0, d) for d, (_, high, inner) in enumerate(config) if high > inner}
    return Resizing(resized_pad, masked=frozenset(masked), fixed=frozenset(fixed))


SHIFT = Resizing(lambda op, operands, results: op)  # the extent is a parameter


def resized_map(op: Op, operands: Sequence[Shape], results: Sequence[Shape]) -> Op:
    """An index map with zeros at its end."""
    p = op.params
    places = p["places"].longer(results[0][p["dimension"]])
    return dataclasses.replace(op, params={**p, "places": places}, key=None)


REMAP = Resizing(resized_map)


def resized_window(op: Op, operands: Sequence[Shape], results: Sequence[Shape]) -> Op:
    """A pooling with more or less padding at the end of the operand."""
    padding = list(op.params["padding"])
    strides = op.params["window_strides"]
    for d, (low, high) in enumerate(padding):
        more = (results[0][d] - result_shape(op)[d]) * strides[d]
        padding[d] = (low, high + more - (operands[0][d] - shape_of(op, 0)[d]))
    return dataclasses.replace(op, params={**op.params, "padding": tuple(padding)}, key=None)


def windows(op: Op, filler: str) -> Resizing:
    """Resizing of a pooling by the monoid `filler`."""
    masked = {(0, d) for d, (_, high) in enumerate(op.params["padding"]) if high > 0}
    return Resizing(resized_window, filler, frozenset(masked))


def resized_gradient(op: Op, operands: Sequence[Shape], results: Sequence[Shape]) -> Op:
    """A pooling's gradient with the extents before padding, as param `unpadded`."""
    unpadded = tuple(zip(shape_of(op, 1), shape_of(op, 0), strict=True))
    return dataclasses.replace(op, params={"unpadded": unpadded, **op.params}, key=None)


def gradients_of_windows(op: Op) -> Resizing:
    """Resizing of a pooling's gradient: no window beyond the extent has a cotangent."""
    masked = frozenset((0, d) for d in range(len(result_shape(op))))
    return Resizing(resized_gradient, masked=masked)


def resized_convolution(op: Op, operands: Sequence[Shape], results: Sequence[Shape]) -> Op:
    """A convolution with more or less padding at the end of the image."""
    p, dn = op.params, op.params["dimension_numbers"]
    padding = list(p["padding"])
    for i, (d, k, o) in enumerate(
        zip(dn.lhs_spec[2:], dn.rhs_spec[2:], dn.out_spec[2:], strict=True)
    ):
        more = (results[0][o] - result_shape(op)[o]) * p["window_strides"][i]
        more += (operands[1][k] - shape_of(op, 1)[k]) * p["rhs_dilation"][i]
        more -= (operands[0][d] - shape_of(op, 0)[d]) * p["lhs_dilation"][i]
        low, high = padding[i]
        padding[i] = (low, high + more)
    return dataclasses.replace(op, params={**p, "padding": tuple(padding)}, key=None)


def convolutions(op: Op) -> Resizing | None:
    """Resizing of a convolution; None with groups. Wrapped or mirrored dims keep their extents."""
    p, dn = op.params, op.params["dimension_numbers"]
    if p["feature_group_count"] != 1 or p["batch_group_count"] != 1:
        return None
    masked, fixed = set(), set()
    for i, d in enumerate(dn.lhs_spec[2:]):
        along_window = shape_of(op, 1)[dn.rhs_spec[2 + i]] > result_shape(op)[dn.out_spec[2 + i]]
        if p["padding"][i][1] > 0 or along_window:
            masked.add((0, d))
        if p.get("ends") and p["ends"][i] != ("", ""):
            fixed.add((0, d))
    return Resizing(resized_convolution, masked=frozenset(masked), fixed=frozenset(fixed))
