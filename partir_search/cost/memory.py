"""The live-memory curve of a program, for a whole module or for a folded one.

On a fold the curve is a sparse table: for a handful of positions (the first and last repeats of
each op, since counts are linear in the layer in between) how many members of each class come to
life or die. The curve of a state is then one matrix-vector product, added up.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array, csr_array

from partir_search.cost.traffic import Floats, Ints, RegionTraffic
from partir_search.ir.fold import Folded

EDGE_REPEATS = 2  # repeats of an op looked at, on either end


class Curve:
    """Live bytes over the positions of one region.

    Attributes:
      position: [R] the op position (of the quotient, if folded) that each row belongs to.
    """

    def __init__(self, traffic: RegionTraffic, folded: Folded | None = None) -> None:
        self._changes: csr_array | None = None
        self._start, self._stop, self._value = traffic.start, traffic.stop, traffic.value
        self._weight = traffic.weight
        self._length = max(len(traffic.region.ops), 1)
        self.position: Ints = np.arange(self._length, dtype=np.int64)
        if folded is not None:
            self._fold(folded)

    def _fold(self, folded: Folded) -> None:
        rows = _rows(folded, np.concatenate((self._start, self._stop)))
        classes = np.array([folded.class_of[v] for v in self._value], dtype=np.int64)
        known = classes >= 0
        first = np.searchsorted(rows, self._start[known], side="left")
        last = np.searchsorted(rows, self._stop[known], side="right")
        weight = self._weight[known]
        self._changes = coo_array(
            (
                np.concatenate((weight, -weight)),
                (np.concatenate((first, last)), np.concatenate((classes[known],) * 2)),
            ),
            shape=(len(rows) + 1, len(folded.module.values)),
        ).tocsr()
        self.position = np.array([folded.op_of[r] for r in rows], dtype=np.int64)

    def bytes_at(self, nbytes: Floats) -> Floats:
        """[R] live bytes of stored values, from the local bytes of each value (or class)."""
        if self._changes is not None:
            changes: Floats = self._changes @ nbytes
            return np.cumsum(changes)[:-1]
        events = np.zeros(self._length + 1)
        sizes = nbytes[self._value] * self._weight if len(self._value) else np.zeros(0)
        np.add.at(events, self._start, sizes)
        np.subtract.at(events, self._stop + 1, sizes)
        return np.cumsum(events)[:-1]


def _rows(folded: Folded, ends: Ints) -> Ints:
    """Positions at which the curve of a folded program can peak: where something dies, or is made
    from operands that were copied for it.
    """
    length = len(folded.original.body.ops)
    keep = np.zeros(length, dtype=bool)
    keep[ends[ends < length]] = True
    members: dict[int, list[int]] = {}
    for row in np.flatnonzero(keep).tolist():
        members.setdefault(folded.op_of[row], []).append(row)
    for rows in members.values():
        keep[rows[EDGE_REPEATS : max(EDGE_REPEATS, len(rows) - EDGE_REPEATS)]] = False
    if not keep.any():
        keep[-1:] = True
    return np.flatnonzero(keep).astype(np.int64)
