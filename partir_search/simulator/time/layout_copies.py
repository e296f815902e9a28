"""Copies between layouts around look-ups and scatters of narrow rows.

XLA:TPU looks up rows, and scatters into rows, in row-major arrays, whose rows fill whole tiles of
`XlaTraits.tile_lanes` elements. An array of narrower rows lies by columns elsewhere, without
padding, and is copied: a table and the rows taken from it, updates and the array scattered into. A
copy reads and writes as many bytes as the padded array has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from partir_search.ir.core import Module, Op, Value
from partir_search.ir.partition import Partition
from partir_search.ir.role import Role
from partir_search.ir.rule import OpRule
from partir_search.simulator.arrays import Floats, Ints
from partir_search.simulator.printing import table
from partir_search.simulator.target.traits import XlaTraits
from partir_search.simulator.time.kernels import Kernels


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class LayoutCopies:
    """C values that are copied between layouts if their rows fill no whole tiles.

    Attributes:
      kernel / value: [C] kernel with the copy, and id of the value.
      row: [C] elements of a row of the whole value.
      last: [C] the value's last dim.
      lanes: elements of a tile.
    """

    kernel: Ints
    value: Ints
    row: Floats
    last: Ints
    lanes: int

    def __str__(self) -> str:
        columns = (self.kernel, self.value, self.row)
        rows = list(zip(*(x.tolist() for x in columns), strict=True))
        return table("LayoutCopies", ("kernel", "value", "elements of a row"), rows)

    def nbytes(self, compact: Floats, partition: Partition) -> Floats:
        """[C] bytes of a padded copy; 0 for a value that lies by rows.

        Args:
          compact: [values] local bytes without padding.
        """
        split = np.ones(len(self.value))
        for rows, size in zip(partition.axes, partition.mesh.sizes, strict=True):
            split[self.last == rows.tile_row[self.value]] *= size
        return compact[self.value] * padded_rows(self.row / split, self.lanes)

    def of_codes(self, c: int, codes: Ints, mesh_sizes: Floats) -> Floats:
        """[...] bytes of copy `c` over those of the value, tiled by [..., axes] codes."""
        split = np.prod(np.where(codes == self.last[c], mesh_sizes, 1.0), axis=-1)
        return padded_rows(self.row[c] / split, self.lanes)


def padded_rows(rows: Floats | float, lanes: int) -> Floats:
    """[...] padded over compact elements of rows; 0 for rows of whole tiles, or without tiles."""
    whole = np.ceil(rows / lanes) * lanes
    # A row with fewer elements than devices is one of 0 elements, which is no copy either.
    found = np.zeros(np.shape(rows))
    np.divide(whole, rows, out=found, where=whole != rows)
    return found


def layout_copies(
    module: Module, rules: Sequence[OpRule], kernels: Kernels, traits: XlaTraits
) -> LayoutCopies:
    """Values copied by a module's kernels; none on a target without tiles.

    Args:
      rules: per op id.
    """
    found: list[tuple[int, Value]] = []
    if traits.tile_lanes > 1:
        for k, op_id in enumerate(kernels.op.tolist()):
            op = module.ops[op_id]
            found += ((k, v) for v in _by_rows(op, rules[op_id]))
    return LayoutCopies(
        kernel=np.array([k for k, _ in found], dtype=np.int64),
        value=np.array([v.id for _, v in found], dtype=np.int64),
        row=np.array([v.type.shape[-1] for _, v in found], dtype=np.float64),
        last=np.array([len(v.type.shape) - 1 for _, v in found], dtype=np.int64),
        lanes=traits.tile_lanes,
    )


def _by_rows(op: Op, rule: OpRule) -> Iterator[Value]:
    """Matrices that an op reads or makes by rows: of a look-up or a scatter of whole rows."""
    if rule.role is Role.SCATTER:
        ends: tuple[object, ...] = (op.results[0], op.operands[-1])
        rows = rule.results[0], rule.operands[-1]
    elif rule.is_table_lookup and len(op.results) == 1:
        ends = op.operands[0], op.results[0]
        rows = rule.operands[0], rule.results[0]
    else:
        return
    one, other = rows
    if len(one) < 2 or len(other) < 2 or one[-1] < 0 or one[-1] != other[-1]:
        return
    for v in ends:
        if isinstance(v, Value) and v.type.shape[-1] > 1 and v.type.nbytes:
            yield v
