"""Readers of the values of a region."""

from __future__ import annotations

from partir_search.ir.core import Op, Region, Value


def readers_of(region: Region) -> dict[Value, list[Op | None]]:
    """Ops of a region that read each value, in order; None stands for the results of the region.

    Values without readers are left out.
    """
    readers: dict[Value, list[Op | None]] = {}
    for op in region.ops:
        for v in dict.fromkeys(x for _, x in op.inputs()):
            readers.setdefault(v, []).append(op)
    for x in region.results:
        if isinstance(x, Value):
            readers.setdefault(x, []).append(None)
    return readers
