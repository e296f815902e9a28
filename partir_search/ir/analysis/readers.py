"""Readers of the values of a region."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from partir_search.ir.core import Op, Operand, Region, Value


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


def read_ops(
    ops: Sequence[Op], results: Iterable[Operand], known: Container[Value] = ()
) -> list[Op]:
    """Ops of a region with effects, or with a result that an op or the region reads.

    Args:
      results: of the region.
      known: values made elsewhere, whose makers are left out.
    """
    read = {x for x in results if isinstance(x, Value) and x not in known}
    found: list[Op] = []
    for op in reversed(ops):
        if op.effect or not read.isdisjoint(op.results):
            found.append(op)
            read.update(x for _, x in op.inputs() if x not in known)
    return found[::-1]
