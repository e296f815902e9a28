"""Gathers and scatters at places that are known before the program runs, as index maps per dim."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from partir_search.ir.boundaries import Ints
from partir_search.ir.core import Op, Shape, Value
from partir_search.ir.role import Role
from partir_search.passes.views.known import Known
from partir_search.passes.views.write import Writer
from partir_search.rules import construct
from partir_search.rules.construct import reshaped
from partir_search.rules.registry import role_of


@dataclasses.dataclass(frozen=True, slots=True)
class Indexed:
    """Places of an array that an op reads or updates: all combinations of those of its dims.

    Attributes:
      maps: by dim that is indexed, the places.
      order: dims of the array as they follow each other in the part that is read or updated; -1 for
        a dim of one element that the array lacks. Dims of one place may be left out.
    """

    maps: dict[int, Ints]
    order: tuple[int, ...]

    def grid(self, shape: Shape) -> Shape:
        """Shape of the part with its dims in the array's order."""
        return tuple(len(self.maps[d]) if d in self.maps else n for d, n in enumerate(shape))

    def written(self, writer: Writer, op: Op, x: Value, into: Value) -> None:
        """A grid in the order of the part."""
        held = [d for d in self.order if d >= 0]
        moved = [*held, *(d for d in range(len(x.type.shape)) if d not in held)]
        x = transposed(writer, op, x, moved)
        if x.type.shape == into.type.shape:
            writer.renamed(op, x, into)
        else:
            writer.put(op, reshaped(x, into.type.shape), into)

    def gridded(self, writer: Writer, op: Op, part: Value, shape: Shape) -> Value:
        """A part as a grid."""
        grid = self.grid(shape)
        held = [d for d in self.order if d >= 0]
        short = tuple(grid[d] for d in held)
        x = part if part.type.shape == short else writer.put(op, reshaped(part, short))
        x = transposed(writer, op, x, [held.index(d) for d in sorted(held)])
        return x if x.type.shape == grid else writer.put(op, reshaped(x, grid))


def indexed(op: Op, known: Known) -> Indexed | None:
    """Places of a gather or scatter; None if they are not known, or no combinations of places."""
    role = role_of(op)
    gathers = role is Role.GATHER
    if not gathers and role is not Role.SCATTER:
        return None
    dn, shape = op.params["dimension_numbers"], op.operands[0].type.shape
    along = dn.start_index_map if gathers else dn.scatter_dims_to_operand_dims
    gone = dn.collapsed_slice_dims if gathers else dn.inserted_window_dims
    kept = dn.offset_dims if gathers else dn.update_window_dims
    part = op.results[0].type.shape if gathers else op.operands[2].type.shape
    if dn.operand_batching_dims or not along or set(gone) != set(along) or 0 in (*shape, *part):
        return None
    rest = [d for d in range(len(shape)) if d not in along]
    if any(part[k] != shape[d] for k, d in zip(kept, rest, strict=True)):
        return None
    found = known.array(op.operands[1])
    if found is None or found.ndim == 1:
        return None
    lead = [k for k in range(len(part)) if k not in kept]  # dims of the part that the places have
    order = [-1] * len(part)
    for k, d in zip(kept, rest, strict=True):
        order[k] = d
    maps: dict[int, Ints] = {}
    walked: set[int] = set()
    for i, d in enumerate(along):
        places = np.asarray(found[..., i], np.int64)
        axes = [a for a in range(places.ndim) if (places != places.take([0], a)).any()]
        if len(axes) > 1 or not walked.isdisjoint(axes):
            return None
        if places.min() < 0 or places.max() >= shape[d]:
            return None
        if axes:
            walked.update(axes)
            order[lead[axes[0]]] = d
        at = [slice(None) if [a] == axes else 0 for a in range(places.ndim)]
        maps[d] = np.atleast_1d(places[tuple(at)])
    if any(n > 1 and a not in walked for a, n in enumerate(found.shape[:-1])):
        return None
    return Indexed(maps, tuple(order))


def transposed(writer: Writer, op: Op, x: Value, order: Sequence[int]) -> Value:
    """Writes a transpose, if the order is another one."""
    return x if list(order) == sorted(order) else writer.put(op, construct.transposed(x, order))
