"""Convolutions of padded arrays: the padding goes into what the convolution reads.

Zeros are the convolution's own padding. Where the array goes on with its other end, or mirrored,
the boundary becomes a parameter, `ends`: modes of both ends (`ir.boundaries`) for each dim that the
window slides over, in place of the zeros of `padding`.
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
from partir_search.passes.views.maps import Form
from partir_search.passes.views.view import View, zero_filled, zeros_only
from partir_search.passes.views.write import Writer
from partir_search.rules.pooling import window_monoid
from partir_search.rules.registry import role_of

Ends = tuple[tuple[str, str], ...]


def ends_of(params: Mapping[str, Any]) -> Ends:
    """Modes of both ends, by dim that the window slides over."""
    found: Ends | None = params.get("ends")
    return found or ((ZERO, ZERO),) * len(params["padding"])


def around(op: Op, views: Mapping[Value, View]) -> Op | None:
    """A convolution of a padded array as one of the array itself."""
    role = role_of(op)
    if role is Role.POOLING:
        return _pooled(op, views)
    if role is not Role.CONVOLUTION or not isinstance(op.operands[0], Value):
        return None
    view = views.get(op.operands[0])
    forms = view.forms() if view is not None else None
    if not forms or view is None or view.base is None:
        return None
    p, dn = op.params, op.params["dimension_numbers"]
    spatial = list(dn.lhs_spec[2:])
    padding, ends = list(p["padding"]), list(ends_of(p))
    for d, form in forms.items():
        if d not in spatial or form.kept is not None or not _grows(form):
            return None
        i = spatial.index(d)
        low, high = padding[i]
        if form.turns:
            if (low, high) != (0, 0) or p["lhs_dilation"][i] != 1 or min(form.low, form.high) < 0:
                return None
            if ZERO in (form.below, form.above) and not zeros_only(view):
                return None
            padding[i], ends[i] = (form.low, form.high), (form.below, form.above)
        else:
            if ends[i] != (ZERO, ZERO) or not zeros_only(view):
                return None
            holes = p["lhs_dilation"][i]
            padding[i] = (low + form.low * holes, high + form.high * holes)
    params = {**p, "padding": tuple(padding)}
    if any(e != (ZERO, ZERO) for e in ends):
        params["ends"] = tuple(ends)
    return dataclasses.replace(op, operands=(view.base, *op.operands[1:]), params=params, key=None)


def _pooled(op: Op, views: Mapping[Value, View]) -> Op | None:
    """A pooling of an array padded by what its windows leave out, which is its own padding."""
    x = op.operands[0]
    view = views.get(x) if isinstance(x, Value) else None
    forms = view.forms() if view is not None else None
    if not forms or view is None or view.base is None or view.filler is None:
        return None
    filler = identity(window_monoid(op), view.base.type.dtype)
    if bool(view.filler.number != filler) or any(n != 1 for n in op.params["base_dilation"]):
        return None
    padding = list(op.params["padding"])
    for d, form in forms.items():
        if form.turns or form.kept is not None or not _grows(form):
            return None
        padding[d] = (padding[d][0] + form.low, padding[d][1] + form.high)
    params = {**op.params, "padding": tuple(padding)}
    return dataclasses.replace(op, operands=(view.base, *op.operands[1:]), params=params, key=None)


def _grows(form: Form) -> bool:
    return form.low >= 0 and form.high >= 0


def unwrapped(writer: Writer, op: Op, terms: Sequence[View]) -> bool:
    """Writes the gradient of a convolution of a wrapped array as a convolution of a wrapped one.

    The gradient of the wrapped array is longer than the array; what lies beyond its ends is added
    at the other ones. The terms are then a sum over all elements that are so many apart: of a
    convolution, which sums over neighbours, it is one whose neighbours go on around.
    """
    base = terms[0].base
    made = next((o for o in reversed(writer.ops) if o.results and o.results[0] is base), None)
    if made is None or role_of(made) is not Role.CONVOLUTION or base is None:
        return False
    changed = {d for v in terms for d, m in enumerate(v.maps) if m is not None}
    if len(changed) != 1:
        return False
    (dim,) = changed
    p, dn = made.params, made.params["dimension_numbers"]
    if dim not in dn.out_spec[2:]:
        return False
    i = dn.out_spec[2:].index(dim)
    n = op.results[0].type.shape[dim]
    image = made.operands[0].type.shape[dn.lhs_spec[2 + i]]
    window = made.operands[1].type.shape[dn.rhs_spec[2 + i]]
    reach = (window - 1) * p["rhs_dilation"][i]
    low, high = p["padding"][i]
    plain = p["window_strides"][i] == p["lhs_dilation"][i] == 1
    if not plain or ends_of(p)[i] != (ZERO, ZERO) or image != n or reach >= n:
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
    writer.ops.append(dataclasses.replace(made, results=op.results, params=params, key=None))
    return True


def _offset(terms: Sequence[View], dim: int, n: int, size: int) -> int | None:
    """The s of a sum whose element p is that of all elements q with ``q = p + s`` modulo n, each
    once; None if it is no such sum.
    """
    met = np.zeros(size, dtype=np.int64)
    offset: int | None = None
    for view in terms:
        sources = view.sources(dim)
        held = np.flatnonzero(sources >= 0)
        if not len(held) or (len(held) < len(sources) and not zero_filled(view)):
            return None
        apart = set(((sources[held] - held) % n).tolist())
        offset = apart.pop() if offset is None else offset
        if apart - {offset}:
            return None
        np.add.at(met, sources[held], 1)
    return offset if (met == 1).all() else None
