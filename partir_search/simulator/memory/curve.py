"""Live-memory curve of a region, of a whole module or of a folded one.

On a fold the curve is a sparse table: for a handful of positions (the first and last repeats of
each op, since counts are linear in the layer in between) the number of members of each class that
come to life or die. The curve of a partition is then a matrix-vector product, added up. Where the
chip has memory of its own, values that are used up within a few kernels live there, as far as they
fit (`XlaTraits.vmem_lifetime_kernels`, `XlaTraits.vmem_value_fraction`).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from partir_search.ir.core import Value
from partir_search.passes.fold.fold import Folded
from partir_search.passes.fold.linear import Places
from partir_search.simulator.arrays import Bools, Floats, Ints
from partir_search.simulator.memory.buffers import Buffers
from partir_search.simulator.printing import table
from partir_search.simulator.target.machine import Machine

EDGE_REPEATS = 2  # repeats of an op looked at, on either end
MOST_KEPT = 64  # partitions of one region whose live bytes are kept


@dataclasses.dataclass(frozen=True, slots=True)
class _Changes:
    """Sparse matrix [size, classes] of how many members of each class come to life at each row.

    Attributes:
      rows / classes / weights: [entries] in order of rows; weights are negative where members die.
    """

    rows: Ints
    classes: Ints
    weights: Floats
    size: int

    @classmethod
    def of(cls, rows: Ints, classes: Ints, weights: Floats, size: int) -> _Changes:
        """Changes with the entries of one row and class made one."""
        width = int(np.max(classes, initial=0)) + 1
        places, entry = np.unique(rows * width + classes, return_inverse=True)
        summed = np.bincount(entry, weights, len(places)).astype(np.float64, copy=False)
        return cls(places // width, places % width, summed, size)

    def bytes_at(self, nbytes: Floats) -> Floats:
        """[size] bytes that come to life less those that die, from the bytes of each class."""
        moved = self.weights * nbytes[self.classes]
        return np.bincount(self.rows, moved, self.size).astype(np.float64, copy=False)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Curve:
    """Live bytes over the positions of one region, as a function of the bytes of each value.

    Attributes:
      position: [R] position of the op (of the quotient, if folded) that each row belongs to.
      near / far: changes of values that may live on the chip, and of all others.
      vmem_bytes: memory on the chip.
      most_bytes: of one value there.
      changing: ids of the values (or classes) that have live ranges.
    """

    position: Ints
    near: _Changes
    far: _Changes
    vmem_bytes: float
    most_bytes: float
    values: int
    changing: Ints
    kept: dict[bytes, tuple[Floats, float]] = dataclasses.field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        head = f"Curve: {len(self.position)} rows, {len(self.changing)} values with live ranges"
        rows = [("in main memory", len(self.far.rows)), ("on the chip", len(self.near.rows))]
        return table(head, ("", "changes"), rows)

    def bytes_at(self, nbytes: Floats) -> Floats:
        """[R] live bytes of stored values, from the local bytes of each value (or class)."""
        nbytes = nbytes[: self.values]
        if not len(self.near.rows):
            alone: Floats = self.far.bytes_at(nbytes)
            return np.cumsum(alone, out=alone)[:-1]
        small = np.where(nbytes <= self.most_bytes, nbytes, 0.0)
        far: Floats = self.far.bytes_at(nbytes)
        far += self.near.bytes_at(nbytes - small)
        near: Floats = self.near.bytes_at(small)
        for changes in (far, near):  # in place: programs of 1,000 layers have large curves
            np.cumsum(changes, out=changes)
        near -= self.vmem_bytes
        far += np.maximum(near, 0.0, out=near)
        return far[:-1]

    def kept_bytes_at(self, nbytes: Floats) -> tuple[Floats, float]:
        """`bytes_at` and its maximum; kept by the bytes of the values that have live ranges."""
        key = nbytes[self.changing].tobytes()
        found = self.kept.get(key)
        if found is None:
            if len(self.kept) == MOST_KEPT:
                self.kept.clear()
            live = self.bytes_at(nbytes)
            found = self.kept[key] = live, float(np.max(live, initial=0.0))
        return found


def live_curve(
    buffers: Buffers,
    machine: Machine,
    folded: Folded | None = None,
    places: Places | None = None,
) -> Curve:
    """Curve of a region's live ranges.

    Args:
      folded: fold that the region is part of.
      places: ops that are left of the region in the fold; those of the body by default.
    """
    ranges, region = buffers.ranges, buffers.region
    kernel = np.zeros(max(len(region.ops), 1) + 1, dtype=np.int64)
    kernel[list(buffers.materialized.reads)] = 1
    kernel = np.cumsum(kernel)
    results = [x.id for x in region.results if isinstance(x, Value)]
    near = kernel[ranges.stop] - kernel[ranges.start] <= machine.traits.vmem_lifetime_kernels
    near &= ~np.isin(ranges.value, results)
    rows = np.arange(max(len(region.ops), 1), dtype=np.int64)
    classes = ranges.value
    if folded is not None:
        places = places or folded.body
        # A result is moved at the row after its op's, if its op must move it.
        rows = _rows(places, np.concatenate((ranges.start, ranges.start + 1, ranges.stop)))
        classes = np.array([folded.class_of[v] for v in ranges.value], dtype=np.int64)
    position: Ints = rows
    if places is not None:
        position = np.array([places.op_of[r] for r in rows], dtype=np.int64)
    values = len(folded.module.values) if folded else int(np.max(ranges.value, initial=-1)) + 1
    first = np.searchsorted(rows, ranges.start, side="left")
    last = np.searchsorted(rows, ranges.stop, side="right")

    def changes(which: Bools) -> _Changes:
        which = which & (classes >= 0)
        weight, cls = ranges.weight[which], classes[which]
        at = np.concatenate((first[which], last[which]))
        weights = np.concatenate((weight, -weight))
        return _Changes.of(at, np.concatenate((cls, cls)), weights, len(rows) + 1)

    short, long = changes(near), changes(~near)
    changing = np.unique(np.concatenate((short.classes, long.classes)))
    most = machine.vmem_bytes * machine.traits.vmem_value_fraction
    return Curve(position, short, long, machine.vmem_bytes, most, values, changing)


def _rows(places: Places, ends: Ints) -> Ints:
    """Positions at which the curve of a folded program can peak: where a value dies, is made from
    operands that were copied for it, or is copied itself.
    """
    length = len(places.op_of)
    keep = np.zeros(length, dtype=bool)
    keep[ends[ends < length]] = True
    members: dict[int, list[int]] = {}
    for row in np.flatnonzero(keep).tolist():
        members.setdefault(places.op_of[row], []).append(row)
    for rows in members.values():
        keep[rows[EDGE_REPEATS : max(EDGE_REPEATS, len(rows) - EDGE_REPEATS)]] = False
    if not keep.any():
        keep[-1:] = True
    return np.flatnonzero(keep).astype(np.int64)
