"""Convolutions of padded arrays, with the padding moved into the convolution.

Zeros become the convolution's own padding. A wrapped or mirrored boundary becomes the parameter
`ends`: for each dim on which the window slides, the modes of both ends (`ir.boundaries`), in place
of the zeros of `padding`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from partir_search.ir.boundaries import ZERO
from partir_search.ir.core import Op, Value
from partir_search.ir.reducers import identity
from partir_search.ir.role import Role
from partir_search.passes.views.maps import Shift
from partir_search.passes.views.view import View, zero_filled, zeros_only
from partir_search.passes.views.write import Writer
from partir_search.rules.pooling import window_monoid
from partir_search.rules.registry import role_of

Ends = tuple[tuple[str, str], ...]


def ends_of(params: Mapping[str, Any]) -> Ends:
    """Returns the modes of both ends, by dim of the sliding window."""
    found: Ends | None = params.get("ends")
    return found or ((ZERO, ZERO),) * len(params["padding"])


def absorb_padding(op: Op, views: Mapping[Value, View]) -> Op | None:
    """Returns a convolution or pooling of a padded array as an op on the array itself, or None.

    Args:
      views: views by value; the op's image must be a view of an array.
    """
    role = role_of(op)
    if role is Role.POOLING:
        return _pool(op, views)
    if role is not Role.CONVOLUTION or not isinstance(op.operands[0], Value):
        return None
    view = views.get(op.operands[0])
    shifts = view.shifts() if view is not None else None
    if not shifts or view is None or view.base is None:
        return None
    p, dn = op.params, op.params["dimension_numbers"]
    spatial = list(dn.lhs_spec[2:])
    padding, ends = list(p["padding"]), list(ends_of(p))
    for d, shift in shifts.items():
        if d not in spatial or shift.kept is not None or not _only_pads(shift):
            return None
        i = spatial.index(d)
        low, high = padding[i]
        if shift.has_boundary:
            if (low, high) != (0, 0) or p["lhs_dilation"][i] != 1 or min(shift.low, shift.high) < 0:
                return None
            if ZERO in (shift.below, shift.above) and not zeros_only(view):
                return None
            padding[i], ends[i] = (shift.low, shift.high), (shift.below, shift.above)
        else:
            if ends[i] != (ZERO, ZERO) or not zeros_only(view):
                return None
            holes = p["lhs_dilation"][i]
            padding[i] = (low + shift.low * holes, high + shift.high * holes)
    params = {**p, "padding": tuple(padding)}
    if any(e != (ZERO, ZERO) for e in ends):
        params["ends"] = tuple(ends)
    return dataclasses.replace(op, operands=(view.base, *op.operands[1:]), params=params, key=None)


def _pool(op: Op, views: Mapping[Value, View]) -> Op | None:
    """Returns a pooling of an array padded with the monoid's identity as one with more padding."""
    x = op.operands[0]
    view = views.get(x) if isinstance(x, Value) else None
    shifts = view.shifts() if view is not None else None
    if not shifts or view is None or view.base is None or view.filler is None:
        return None
    filler = identity(window_monoid(op), view.base.type.dtype)
    if bool(view.filler.number != filler) or any(n != 1 for n in op.params["base_dilation"]):
        return None
    padding = list(op.params["padding"])
    for d, shift in shifts.items():
        if shift.has_boundary or shift.kept is not None or not _only_pads(shift):
            return None
        padding[d] = (padding[d][0] + shift.low, padding[d][1] + shift.high)
    params = {**op.params, "padding": tuple(padding)}
    return dataclasses.replace(op, operands=(view.base, *op.operands[1:]), params=params, key=None)


def _only_pads(shift: Shift) -> bool:
    """True if a map drops no element at either end."""
    return shift.low >= 0 and shift.high >= 0


def write_periodic_gradient(writer: Writer, op: Op, terms: Sequence[View]) -> bool:
    """Writes the gradient of a convolution of a wrapped array as a convolution of a wrapped array.

    The gradient of the wrapped array is longer than the array: elements beyond each end are added
    at the opposite end. The sum adds all elements congruent modulo the array's extent; for the
    result of a convolution, it equals a convolution with wrapped ends.

    Args:
      terms: views whose sum is the op's result.

    Returns:
      False if the sum is of another kind; no op is written then.
    """
    base = terms[0].base
    convolution = next(
        (o for o in reversed(writer.ops) if o.results and o.results[0] is base), None
    )
    if convolution is None or role_of(convolution) is not Role.CONVOLUTION or base is None:
        return False
    changed = {d for v in terms for d, m in enumerate(v.maps) if m is not None}
    if len(changed) != 1:
        return False
    (dim,) = changed
    p, dn = convolution.params, convolution.params["dimension_numbers"]
    if dim not in dn.out_spec[2:]:
        return False
    i = dn.out_spec[2:].index(dim)
    n = op.results[0].type.shape[dim]
    image = convolution.operands[0].type.shape[dn.lhs_spec[2 + i]]
    window = convolution.operands[1].type.shape[dn.rhs_spec[2 + i]]
    reach = (window - 1) * p["rhs_dilation"][i]
    low, high = p["padding"][i]
    unit_strides = p["window_strides"][i] == p["lhs_dilation"][i] == 1
    if not unit_strides or ends_of(p)[i] != (ZERO, ZERO) or image != n or reach >= n:
        return False
    size = base.type.shape[dim]
    if low < reach or high < reach:
        return False
    offset = _offset(terms, dim, n, size)
    if offset is None:
        return False
    before = (low - offset) % n
    if before > reach:
        return False
    padding, ends = list(p["padding"]), list(ends_of(p))
    padding[i], ends[i] = (before, reach - before), ("wrap", "wrap")
    params = {**p, "padding": tuple(padding), "ends": tuple(ends)}
    writer.ops.append(dataclasses.replace(convolution, results=op.results, params=params, key=None))
    return True


def _offset(terms: Sequence[View], dim: int, n: int, size: int) -> int | None:
    """Returns s, if element p of the sum adds each element q with ``q = p + s`` modulo n once.

    Args:
      n: extent of the sum's dim.
      size: extent of the base's dim.

    Returns:
      s, or None for sums of another kind.
    """
    times_read = np.zeros(size, dtype=np.int64)
    offset: int | None = None
    for view in terms:
        sources = view.sources(dim)
        read_at = np.flatnonzero(sources >= 0)
        if not len(read_at) or (len(read_at) < len(sources) and not zero_filled(view)):
            return None
        offsets = set(((sources[read_at] - read_at) % n).tolist())
        offset = offsets.pop() if offset is None else offset
        if offsets - {offset}:
            return None
        np.add.at(times_read, sources[read_at], 1)
    return offset if (times_read == 1).all() else None
