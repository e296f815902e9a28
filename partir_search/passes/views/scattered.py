"""Scatters at known places near the elements that are put there: sums, or selects, of maps.

What is put into an array at every second place is an array with gaps, which is added to it, or
selected where places are met. Where one place is met several times, as by the gradients of
gathers, there are as many summands.
"""

from __future__ import annotations

import numpy as np

from partir_search.ir.boundaries import Ints
from partir_search.ir.core import Op, Shape, Value
from partir_search.passes.views.along import along, near
from partir_search.passes.views.indexed import Indexed
from partir_search.passes.views.maps import FILLER
from partir_search.passes.views.write import Writer
from partir_search.rules.construct import added, reshaped, summed
from partir_search.rules.indexing import scatter_combiner, scatter_monoid

MOST = 8  # times that a place is met


def scattered(writer: Writer, op: Op, found: Indexed, *, zeros: bool) -> bool:
    """Writes a scatter; False if its places lie far from the elements that are put there.

    Args:
      zeros: the operand is zeros.
    """
    into, _, part = op.operands
    if not isinstance(part, Value):
        return False
    shape, how, (result,) = into.type.shape, scatter_combiner(op), op.results
    adds = scatter_monoid(op) == "sum"
    inverse = {d: _inverse(at, shape[d]) for d, at in found.maps.items()}
    several = [d for d, maps in inverse.items() if len(maps) > 1]
    if several and (not adds or len(several) > 1 or len(inverse[several[0]]) > MOST):
        return False
    grid = found.grid(shape)
    if not any(near(maps[0], grid[d]) for d, maps in inverse.items()):
        return False
    wheres = {d: _where(at, shape[d]) for d, at in found.maps.items()}
    if not adds and any(w is None for w in wheres.values()):
        return False
    x = found.gridded(writer, op, part, shape)
    last = several[0] if several else -1
    for d, maps in inverse.items():
        if d != last:
            x = along(writer, op, x, d, maps[0])
    if last >= 0:
        x = _summed(writer, op, x, last, found.maps[last], inverse[last], shape)
    if adds:
        if zeros:
            writer.renamed(op, x, result)
        else:
            writer.put(op, added(into, x), result)
        return True
    inside = [
        within(writer, op, shape, d, *where)
        for d, where in wheres.items()
        if where is not None and where != (0, shape[d], 1)
    ]
    if how is not None:
        x = writer.put(op, how(into, x))
    if inside:
        writer.select(op, writer.all_of(op, inside), x, into, result)
    else:
        writer.renamed(op, x, result)
    return True


def _summed(
    writer: Writer, op: Op, x: Value, dim: int, at: Ints, maps: list[Ints], shape: Shape
) -> Value:
    """Elements that are put into one place are added up."""
    n, each = shape[dim], len(at) // shape[dim]
    rest = x.type.shape
    if each * n == len(at) and (at == np.arange(len(at)) // each).all():
        wide = writer.put(op, reshaped(x, (*rest[:dim], n, each, *rest[dim + 1 :])))
        return writer.put(op, summed(wide, dim + 1))
    parts = [along(writer, op, x, dim, m) for m in maps]
    total = parts[0]
    for other in parts[1:]:
        total = writer.put(op, added(total, other))
    return total


def _inverse(at: Ints, n: int) -> list[Ints]:
    """Maps from places to the elements that are put there: one for each time that some is met."""
    order = np.argsort(at, kind="stable")
    ranked = at[order]
    begins = np.flatnonzero(np.diff(ranked, prepend=-1))
    times = np.arange(len(at)) - np.repeat(begins, np.diff(begins, append=len(at)))
    found = []
    for k in range(min(int(np.max(times, initial=0)) + 1, MOST + 1)):
        sources = np.full(n, FILLER)
        sources[ranked[times == k]] = order[times == k]
        found.append(sources)
    return found


def _where(at: Ints, n: int) -> tuple[int, int, int] | None:
    """First place, end, and step of places; None if they are not evenly spaced."""
    held = np.unique(at)
    steps = np.unique(np.diff(held))
    if len(steps) > 1:
        return None
    step = int(steps[0]) if len(steps) else 1
    return int(held[0]), int(held[-1]) + 1, step


def within(
    writer: Writer, op: Op, shape: Shape, dim: int, start: int, stop: int, step: int
) -> Value:
    """Tells whether a place is one of [start, stop) in steps."""
    ends = writer.within(op, shape, dim, start, stop)
    if step == 1:
        return ends
    return writer.all_of(op, [ends, writer.every(op, shape, dim, start % step, step)])
