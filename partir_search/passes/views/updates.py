"""Slices and updates at places that are known before the program runs.

`x.at[1:-1].add(v)` is a scatter to jax, and `x.at[0:3].get()` a gather. Where the place is
constant they are a sum, or a select, with a padded array, and a slice.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax

from partir_search.ir.core import Literal, Op, Operand, Value
from partir_search.passes.views.constants import Constants
from partir_search.passes.views.maps import ANY, FILLER
from partir_search.passes.views.view import View, whole, zero
from partir_search.passes.views.write import Writer
from partir_search.rules.shifts import FEW, LITTLE

SCATTERS = {  # what is done with the part and what is there; None: it takes its place
    "scatter": None,
    "scatter-add": lax.add_p,
    "scatter-sub": lax.sub_p,
    "scatter-mul": lax.mul_p,
    "scatter-min": lax.min_p,
    "scatter-max": lax.max_p,
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Update:
    """A part of `into` that is set, or combined with another one.

    Attributes:
      how: the primitive that combines them; None where the part is set.
      starts: per dim of `into`, where the part begins.
      missing: dims of `into` that the part does not have.
    """

    how: Any
    into: Operand
    part: Operand
    starts: tuple[int, ...]
    missing: tuple[int, ...]


def as_slice(op: Op, constants: Constants) -> Op | None:
    """A gather or dynamic slice of one piece at a constant place as a slice."""
    shape = op.operands[0].type.shape if op.operands else ()
    if op.prim == "gather":
        dn, sizes = op.params["dimension_numbers"], op.params["slice_sizes"]
        at = constants.of(op.operands[1])
        plain = not dn.collapsed_slice_dims and not dn.operand_batching_dims
        if at is None or at.ndim != 1 or not plain:
            return None
        starts = [0] * len(shape)
        for d, n in zip(dn.start_index_map, at.tolist(), strict=True):
            starts[d] = n
    elif op.prim == "dynamic_slice":
        found, sizes = [constants.of(x) for x in op.operands[1:]], op.params["slice_sizes"]
        if any(x is None for x in found):
            return None
        starts = _clamped([int(x) for x in found], sizes, shape)  # type: ignore[arg-type]
    else:
        return None
    ends = [s + n for s, n in zip(starts, sizes, strict=True)]
    if any(n > FEW and 2 * n < m for n, m in zip(sizes, shape, strict=True)):
        return None
    if any(s < 0 or e > n for s, e, n in zip(starts, ends, shape, strict=True)):
        return None
    params = {"start_indices": tuple(starts), "limit_indices": tuple(ends), "strides": None}
    return dataclasses.replace(
        op,
        prim=lax.slice_p.name,
        handle=lax.slice_p,
        operands=op.operands[:1],
        params=params,
        key=None,
    )


def _clamped(starts: Sequence[int], sizes: Sequence[int], shape: Sequence[int]) -> list[int]:
    triples = zip(starts, sizes, shape, strict=True)
    return [min(max(s, 0), max(n - m, 0)) for s, m, n in triples]


def update(writer: Writer, op: Op, constants: Constants, views: Mapping[Value, View]) -> bool:
    """Writes an update of most or little of a dim as a select or a sum, if the op is one."""
    found = _found(op, constants)
    if found is None:
        return False
    shape, (result,) = op.results[0].type.shape, op.results
    part = found.part
    if isinstance(part, Literal):
        return False
    wide = tuple(d for d in range(len(shape)) if d not in found.missing)
    sizes = tuple(
        1 if d in found.missing else part.type.shape[wide.index(d)] for d in range(len(shape))
    )
    pairs = list(enumerate(zip(sizes, shape, strict=True)))
    partial = [d for d, (m, n) in pairs if m != n]
    inner = [d for d in partial if d not in found.missing]
    if not inner or not all(LITTLE * n >= min(m, n - m) for d, (m, n) in pairs if d in inner):
        return False
    view = views.get(part) or whole(part)
    if found.missing and view.base is not None:
        params = {"shape": sizes, "broadcast_dimensions": wide, "sharding": None}
        handle = lax.broadcast_in_dim_p
        view = whole(writer.add(op, handle, (part,), sizes, params, like=part.type))
    other = FILLER if found.how is lax.add_p else ANY
    if view.base is None:
        assert view.filler is not None
        placed = writer.full(op, view.filler, shape)
    else:
        near = _placed(view, found.starts, shape, other)
        if near is None:
            near = _placed(whole(part), found.starts, shape, other)
        assert near is not None
        placed = writer.view(op, near)
    if found.how is lax.add_p and view.base is not None:
        writer.add(op, lax.add_p, (found.into, placed), shape, {}, into=result)
        return True
    inside = [
        writer.within(op, shape, d, found.starts[d], found.starts[d] + sizes[d]) for d in partial
    ]
    like = result.type

    def both(a: Value, b: Value) -> Value:
        return writer.add(op, lax.and_p, (a, b), shape, {}, like=inside[0].type)

    where = functools.reduce(both, inside)
    if found.how is not None:
        placed = writer.add(op, found.how, (found.into, placed), shape, {}, like=like)
    writer.select(op, where, placed, found.into, result)
    return True


def _placed(view: View, starts: Sequence[int], shape: Sequence[int], other: int) -> View | None:
    """The part as a view of the whole's shape, `other` around it; None if that is no shift."""
    assert view.base is not None
    if other == FILLER:
        view = dataclasses.replace(view, filler=zero(view.base.type))
    for d, (start, n) in enumerate(zip(starts, shape, strict=True)):
        m = len(view.sources(d))
        if m != n:
            ends = (start, n - m - start)
            view = view.mapped(d, lambda s, e=ends: np.pad(s, e, constant_values=other))  # type: ignore[misc]
    forms = view.forms()
    if forms is None or any(f.turns and "" in (f.below, f.above) for f in forms.values()):
        return None
    return view


def _found(op: Op, constants: Constants) -> _Update | None:
    """The update that an op is: of one part, at a constant place inside of the whole."""
    if op.prim == "dynamic_update_slice":
        into, part, *at = op.operands
        found = [constants.of(x) for x in at]
        if any(x is None for x in found):
            return None
        numbers: list[Any] = [int(x) for x in found if x is not None]
        starts = _clamped(numbers, part.type.shape, into.type.shape)
        return _Update(None, into, part, tuple(starts), ())
    if op.prim not in SCATTERS:
        return None
    into, indices, part = op.operands
    dn, places = op.params["dimension_numbers"], constants.of(indices)
    if places is None or places.ndim != 1 or dn.operand_batching_dims:
        return None
    if len(dn.update_window_dims) != len(part.type.shape):
        return None
    shape, missing = into.type.shape, tuple(dn.inserted_window_dims)
    wide = [d for d in range(len(shape)) if d not in missing]
    sizes = [1] * len(shape)
    for d, n in zip(wide, part.type.shape, strict=True):
        sizes[d] = n
    begins = [0] * len(shape)
    for d, n in zip(dn.scatter_dims_to_operand_dims, places.tolist(), strict=True):
        begins[d] = n
    if any(s < 0 or s + m > n for s, m, n in zip(begins, sizes, shape, strict=True)):
        return None
    return _Update(SCATTERS[op.prim], into, part, tuple(begins), missing)
