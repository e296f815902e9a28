"""Slices and updates at positions known at planning time.

In jax, `x.at[1:-1].add(v)` is a scatter and `x.at[0:3].get()` a gather. At a constant position, an
update is a sum or a select with a padded array, and a gather is a slice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from partir_search.ir.core import Literal, Op, Operand, Value
from partir_search.ir.role import Role
from partir_search.passes.views.constants import SmallConstants
from partir_search.passes.views.maps import ANY, FILLER
from partir_search.passes.views.view import View, identity_view
from partir_search.passes.views.write import Writer
from partir_search.rules.construct import NewOp, added, broadcast, sliced, zero
from partir_search.rules.indexing import scatter_combiner, scatter_monoid
from partir_search.rules.registry import role_of
from partir_search.rules.shifts import FEW, LITTLE

MOST_WIDER = 4  # extent of a dim over its updated part, where another dim's is most or little


@dataclasses.dataclass(frozen=True, slots=True)
class Update:
    """An update of one contiguous slice of an array.

    Attributes:
      combine: builds the combination of old and new elements; None if the new replace the old.
      adds: True if the new elements are added.
      into: the array.
      update: the new elements.
      starts: by dim of `into`, the first position written.
      missing: dims of `into` absent from the update.
    """

    combine: Callable[[Operand, Operand], NewOp] | None
    adds: bool
    into: Operand
    update: Operand
    starts: tuple[int, ...]
    missing: tuple[int, ...]


def slice_at(op: Op, constants: SmallConstants) -> tuple[list[int], list[int]] | None:
    """Starts and sizes of a gather or dynamic slice at one constant position, or None.

    Sizes are those of the array's dims; a gather's result may lack dims of one element.
    """
    shape = op.operands[0].type.shape if op.operands else ()
    role = role_of(op)
    if role is Role.GATHER:
        dn, sizes = op.params["dimension_numbers"], op.params["slice_sizes"]
        at = constants.of(op.operands[1])
        if at is None or at.ndim != 1 or dn.operand_batching_dims:
            return None
        starts = [0] * len(shape)
        for d, n in zip(dn.start_index_map, at.tolist(), strict=True):
            starts[d] = n
    elif role is Role.DYNAMIC_SLICE:
        found, sizes = [constants.of(x) for x in op.operands[1:]], op.params["slice_sizes"]
        if any(x is None for x in found):
            return None
        starts = _clamped([int(x) for x in found], sizes, shape)  # type: ignore[arg-type]
    else:
        return None
    if any(s < 0 or s + n > m for s, n, m in zip(starts, sizes, shape, strict=True)):
        return None
    return starts, list(sizes)


def as_slice(op: Op, constants: SmallConstants) -> Op | None:
    """Returns a gather or dynamic slice at one constant position as a slice, or None."""
    found = slice_at(op, constants)
    if found is None:
        return None
    (starts, sizes), shape = found, op.operands[0].type.shape
    if len(op.results[0].type.shape) != len(shape):
        return None
    if any(n > FEW and 2 * n < m for n, m in zip(sizes, shape, strict=True)):
        return None
    ends = [s + n for s, n in zip(starts, sizes, strict=True)]
    return sliced(op.operands[0], starts, ends).at(op, op.results[0])


def _clamped(starts: Sequence[int], sizes: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Returns starts moved inside the array, as dynamic slices do."""
    triples = zip(starts, sizes, shape, strict=True)
    return [min(max(s, 0), max(n - m, 0)) for s, m, n in triples]


def write_update(
    writer: Writer, op: Op, constants: SmallConstants, views: Mapping[Value, View]
) -> bool:
    """Writes an update as a select or a sum; False unless it covers most or little of each dim."""
    found = update_at(op, constants)
    if found is None:
        return False
    shape, (result,) = op.results[0].type.shape, op.results
    update = found.update
    if isinstance(update, Literal):
        return False
    wide = tuple(d for d in range(len(shape)) if d not in found.missing)
    sizes = tuple(
        1 if d in found.missing else update.type.shape[wide.index(d)] for d in range(len(shape))
    )
    pairs = list(enumerate(zip(sizes, shape, strict=True)))
    partial = [d for d, (m, n) in pairs if m != n]
    inner = [d for d in partial if d not in found.missing]
    little = {d for d, (m, n) in pairs if d in inner and LITTLE * n >= min(m, n - m)}
    if not little or any(n > MOST_WIDER * m for d, (m, n) in pairs if d in {*inner} - little):
        return False
    view = views.get(update) or identity_view(update)
    if found.missing and view.base is not None:
        view = identity_view(writer.put(op, broadcast(update, sizes, wide)))
    outside = FILLER if found.adds else ANY
    if view.base is None:
        assert view.filler is not None
        placed = writer.full(op, view.filler, shape)
    else:
        view_in_whole = _placed(view, found.starts, shape, outside)
        if view_in_whole is None:
            view_in_whole = _placed(identity_view(update), found.starts, shape, outside)
        assert view_in_whole is not None
        placed = writer.view(op, view_in_whole)
    if found.adds and view.base is not None:
        writer.put(op, added(found.into, placed), result)
        return True
    flags = [
        writer.within(op, shape, d, found.starts[d], found.starts[d] + sizes[d]) for d in partial
    ]
    where = writer.all_of(op, flags)
    if found.combine is not None:
        placed = writer.put(op, found.combine(found.into, placed))
    writer.select(op, where, placed, found.into, result)
    return True


def _placed(view: View, starts: Sequence[int], shape: Sequence[int], outside: int) -> View | None:
    """Returns the update as a view of the whole, surrounded by `outside`; None if no shift."""
    assert view.base is not None
    if outside == FILLER:
        view = dataclasses.replace(view, filler=zero(view.base.type))
    for d, (start, n) in enumerate(zip(starts, shape, strict=True)):
        m = len(view.sources(d))
        if m != n:
            ends = (start, n - m - start)
            view = view.mapped(d, lambda s, e=ends: np.pad(s, e, constant_values=outside))  # type: ignore[misc]
    shifts = view.shifts()
    if shifts is None or any(f.has_boundary and "" in (f.below, f.above) for f in shifts.values()):
        return None
    return view


def update_at(op: Op, constants: SmallConstants) -> Update | None:
    """Returns the update of one slice at a constant position inside the array, or None."""
    role = role_of(op)
    if role is Role.DYNAMIC_UPDATE:
        into, update, *at = op.operands
        found = [constants.of(x) for x in at]
        if any(x is None for x in found):
            return None
        numbers: list[Any] = [int(x) for x in found if x is not None]
        starts = _clamped(numbers, update.type.shape, into.type.shape)
        return Update(None, False, into, update, tuple(starts), ())
    if role is not Role.SCATTER:
        return None
    into, indices, update = op.operands
    dn, places = op.params["dimension_numbers"], constants.of(indices)
    if places is None or places.ndim != 1 or dn.operand_batching_dims:
        return None
    if len(dn.update_window_dims) != len(update.type.shape):
        return None
    shape, missing = into.type.shape, tuple(dn.inserted_window_dims)
    wide = [d for d in range(len(shape)) if d not in missing]
    sizes = [1] * len(shape)
    for d, n in zip(wide, update.type.shape, strict=True):
        sizes[d] = n
    begins = [0] * len(shape)
    for d, n in zip(dn.scatter_dims_to_operand_dims, places.tolist(), strict=True):
        begins[d] = n
    if any(s < 0 or s + m > n for s, m, n in zip(begins, sizes, shape, strict=True)):
        return None
    adds = scatter_monoid(op) == "sum"
    return Update(scatter_combiner(op), adds, into, update, tuple(begins), missing)
