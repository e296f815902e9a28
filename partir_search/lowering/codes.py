"""Integer codes of the tilings of values and ops, as keys of caches."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from partir_search.ir.partition import Partition

CODE_BITS = 7  # a dim or factor, of up to 62, and a flag for partial sums


def codes_of(partition: Partition) -> tuple[Sequence[int], Sequence[int]]:
    """Codes per value and per op.

    The code of a value encodes the value's id, tiles and partial sums; the code of an op encodes
    the op's id and loops. Partitions of one module with equal codes and modes lower alike.
    """
    homes: Any = np.arange(len(partition.module.values), dtype=np.int64)
    loops: Any = np.arange(len(partition.module.ops), dtype=np.int64)
    short = len(partition.axes) * CODE_BITS + max(len(homes), len(loops)).bit_length() <= 62
    if not short:
        homes, loops = homes.astype(object), loops.astype(object)
    for rows in partition.axes:
        of_values, of_ops = rows.codes
        homes = (homes << CODE_BITS) + of_values
        loops = (loops << CODE_BITS) + of_ops
    if short:  # an array takes a fifth of a list's bytes
        return array("q", homes.tobytes()), array("q", loops.tobytes())
    return homes.tolist(), loops.tolist()


def codes_at(codes: Sequence[int], ids: npt.NDArray[np.int64]) -> Hashable:
    """Codes of the values or ops `ids`, as one key."""
    if isinstance(codes, array):
        return np.frombuffer(codes, dtype=np.int64)[ids].tobytes()
    return tuple([codes[i] for i in ids.tolist()])
