"""Numbers for the tiles of each value and the loops of each op under a partition."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from partir_search.ir.partition import Partition

CODE_BITS = 7  # hold a dim or a factor and whether a sum is pending: up to 62 dims


def codes_of(partition: Partition) -> tuple[Sequence[int], Sequence[int]]:
    """One number per value, for its tiles and partial sums, and one per op, for its loops."""
    homes: Any = np.arange(len(partition.module.values), dtype=np.int64)
    loops: Any = np.arange(len(partition.module.ops), dtype=np.int64)
    short = len(partition.axes) * CODE_BITS + max(len(homes), len(loops)).bit_length() <= 62
    if not short:
        homes, loops = homes.astype(object), loops.astype(object)
    for rows in partition.axes:
        of_values, of_ops = rows.codes
        homes = (homes << CODE_BITS) + of_values
        loops = (loops << CODE_BITS) + of_ops
    if short:  # a fifth of a list's bytes
        return array("q", homes.tobytes()), array("q", loops.tobytes())
    return homes.tolist(), loops.tolist()


def picked(codes: Sequence[int], ids: npt.NDArray[np.int64]) -> Hashable:
    """The codes of some values or ops."""
    if isinstance(codes, array):
        return np.frombuffer(codes, dtype=np.int64)[ids].tobytes()
    return tuple([codes[i] for i in ids.tolist()])
