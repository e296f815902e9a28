"""Gathers and scatters at positions known at planning time, as one index map per dim."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from partir_search.ir.boundaries import Ints
from partir_search.ir.core import Op, Shape, Value
from partir_search.ir.role import Role
from partir_search.passes.views.constant_arrays import ConstantArrays
from partir_search.passes.views.write import Writer
from partir_search.rules import construct
from partir_search.rules.construct import reshaped
from partir_search.rules.registry import role_of


@dataclasses.dataclass(frozen=True, slots=True)
class Indexed:
    """Positions of an array read or updated by an op: the product of positions along each dim.

    Attributes:
      maps: by indexed dim, its positions.
      order: by dim of the selection read or updated, the dim of the array; -1 for a dim of size 1
        absent from the array. Dims with one position may be absent from the selection.
    """

    maps: dict[int, Ints]
    order: tuple[int, ...]

    def grid(self, shape: Shape) -> Shape:
        """Returns the shape of the selection with dims in the array's order."""
        return tuple(len(self.maps[d]) if d in self.maps else n for d, n in enumerate(shape))

    def write_selection(self, writer: Writer, op: Op, x: Value, into: Value) -> None:
        """Writes a grid (dims in the array's order) as the selection, in the value `into`."""
        present = [d for d in self.order if d >= 0]
        moved = [*present, *(d for d in range(len(x.type.shape)) if d not in present)]
        x = transposed(writer, op, x, moved)
        if x.type.shape == into.type.shape:
            writer.renamed(op, x, into)
        else:
            writer.put(op, reshaped(x, into.type.shape), into)

    def as_grid(self, writer: Writer, op: Op, selection: Value, shape: Shape) -> Value:
        """Returns a selection with dims in the array's order."""
        grid = self.grid(shape)
        present = [d for d in self.order if d >= 0]
        short = tuple(grid[d] for d in present)
        x = selection
        if x.type.shape != short:
            x = writer.put(op, reshaped(x, short))
        x = transposed(writer, op, x, [present.index(d) for d in sorted(present)])
        return x if x.type.shape == grid else writer.put(op, reshaped(x, grid))


def find_indexed(op: Op, arrays: ConstantArrays) -> Indexed | None:
    """Returns the positions of a gather or scatter; None if unknown, or if no product over dims."""
    role = role_of(op)
    gathers = role is Role.GATHER
    if not gathers and role is not Role.SCATTER:
        return None
    dn, shape = op.params["dimension_numbers"], op.operands[0].type.shape
    start_dims = dn.start_index_map if gathers else dn.scatter_dims_to_operand_dims
    dropped = dn.collapsed_slice_dims if gathers else dn.inserted_window_dims
    window_dims = dn.offset_dims if gathers else dn.update_window_dims
    selection = op.results[0].type.shape if gathers else op.operands[2].type.shape
    if (
        dn.operand_batching_dims
        or not start_dims
        or set(dropped) != set(start_dims)
        or 0 in (*shape, *selection)
    ):
        return None
    whole_dims = [d for d in range(len(shape)) if d not in start_dims]
    if any(selection[k] != shape[d] for k, d in zip(window_dims, whole_dims, strict=True)):
        return None
    indices = arrays.array(op.operands[1])
    if indices is None or indices.ndim == 1:
        return None
    index_dims = [k for k in range(len(selection)) if k not in window_dims]
    order = [-1] * len(selection)
    for k, d in zip(window_dims, whole_dims, strict=True):
        order[k] = d
    maps: dict[int, Ints] = {}
    used_axes: set[int] = set()
    for i, d in enumerate(start_dims):
        places = np.asarray(indices[..., i], np.int64)
        axes = [a for a in range(places.ndim) if (places != places.take([0], a)).any()]
        if len(axes) > 1 or not used_axes.isdisjoint(axes):
            return None
        if places.min() < 0 or places.max() >= shape[d]:
            return None
        if axes:
            used_axes.update(axes)
            order[index_dims[axes[0]]] = d
        at = [slice(None) if [a] == axes else 0 for a in range(places.ndim)]
        maps[d] = np.atleast_1d(places[tuple(at)])
    if any(n > 1 and a not in used_axes for a, n in enumerate(indices.shape[:-1])):
        return None
    return Indexed(maps, tuple(order))


def transposed(writer: Writer, op: Op, x: Value, order: Sequence[int]) -> Value:
    """Returns `x` transposed to an order of dims; `x` itself if the order is the identity."""
    return x if list(order) == sorted(order) else writer.put(op, construct.transposed(x, order))
