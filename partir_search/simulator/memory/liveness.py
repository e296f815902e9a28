"""The live-memory curve of a program, for a whole module or for a folded one.

On a fold the curve is a sparse table: for a handful of positions (the first and last repeats of
each op, since counts are linear in the layer in between) how many members of each class come to
life or die. The curve of a state is then a matrix-vector product, added up. Where the chip has
memory of its own, what is used up within a few kernels lives there, as far as it fits.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from partir_search.ir.core import Value
from partir_search.passes.fold.fold import Folded
from partir_search.passes.fold.linear import Places
from partir_search.simulator.memory.buffers import Floats, Ints, RegionTraffic
from partir_search.simulator.target.machine import Machine

EDGE_REPEATS = 2  # repeats of an op looked at, on either end
MOST_KEPT = 64  # states of one region whose live bytes are kept


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


class Curve:
    """Live bytes over the positions of one region.

    Attributes:
      position: [R] the op position (of the quotient, if folded) that each row belongs to.
    """

    def __init__(
        self,
        traffic: RegionTraffic,
        machine: Machine,
        folded: Folded | None = None,
        places: Places | None = None,
    ) -> None:
        """The curve of a region's traffic.

        Args:
          folded: what the region is folded in.
          places: what is left of it there, if it is not the body.
          machine: whose chip may have memory for short-lived values (VMEM).
        """
        self._on_chip = machine.vmem_bytes
        self._largest = machine.vmem_bytes * machine.traits.vmem_value_fraction
        kernel = np.zeros(max(len(traffic.region.ops), 1) + 1, dtype=np.int64)
        kernel[list(traffic.reads)] = 1
        kernel = np.cumsum(kernel)
        results = [x.id for x in traffic.region.results if isinstance(x, Value)]
        near = kernel[traffic.stop] - kernel[traffic.start] <= machine.traits.vmem_lifetime_kernels
        near &= ~np.isin(traffic.value, results)
        rows = np.arange(max(len(traffic.region.ops), 1), dtype=np.int64)
        classes = traffic.value
        if folded is not None:
            places = places or folded.body
            # What is made is moved at the next row, if its op is told to.
            rows = _rows(places, np.concatenate((traffic.start, traffic.start + 1, traffic.stop)))
            classes = np.array([folded.class_of[v] for v in traffic.value], dtype=np.int64)
        self.position: Ints = rows
        if places is not None:
            self.position = np.array([places.op_of[r] for r in rows], dtype=np.int64)
        values = len(folded.module.values) if folded else int(np.max(traffic.value, initial=-1)) + 1
        first = np.searchsorted(rows, traffic.start, side="left")
        last = np.searchsorted(rows, traffic.stop, side="right")

        def changes(which: npt.NDArray[np.bool_]) -> _Changes:
            which = which & (classes >= 0)
            weight, cls = traffic.weight[which], classes[which]
            at = np.concatenate((first[which], last[which]))
            weights = np.concatenate((weight, -weight))
            return _Changes.of(at, np.concatenate((cls, cls)), weights, len(rows) + 1)

        self._near, self._far = changes(near), changes(~near)
        self._values = values
        self._changing = np.unique(np.concatenate((self._near.classes, self._far.classes)))
        self._kept: dict[bytes, tuple[Floats, float]] = {}

    def bytes_at(self, nbytes: Floats) -> Floats:
        """[R] live bytes of stored values, from the local bytes of each value (or class)."""
        nbytes = nbytes[: self._values]
        if not len(self._near.rows):
            alone: Floats = self._far.bytes_at(nbytes)
            return np.cumsum(alone, out=alone)[:-1]
        small = np.where(nbytes <= self._largest, nbytes, 0.0)
        far: Floats = self._far.bytes_at(nbytes)
        far += self._near.bytes_at(nbytes - small)
        near: Floats = self._near.bytes_at(small)
        for changes in (far, near):  # in place: programs of 1,000 layers have large curves
            np.cumsum(changes, out=changes)
        near -= self._on_chip
        far += np.maximum(near, 0.0, out=near)
        return far[:-1]

    def kept_bytes_at(self, nbytes: Floats) -> tuple[Floats, float]:
        """`bytes_at` and the most of them; kept by the bytes of the values that are counted."""
        key = nbytes[self._changing].tobytes()
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) == MOST_KEPT:
                self._kept.clear()
            live = self.bytes_at(nbytes)
            found = self._kept[key] = live, float(np.max(live, initial=0.0))
        return found


def _rows(places: Places, ends: Ints) -> Ints:
    """Positions at which the curve of a folded program can peak: where something dies, is made
    from operands that were copied for it, or is copied itself.
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
