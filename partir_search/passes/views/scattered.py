"""Scatters at known positions near the updates: sums or selects of index maps.

Updates at each second position are an array with gaps: added to the operand, or selected at the
updated positions. For repeated positions, as in the gradient of a gather, the sum has one term for
each repetition.
"""

from __future__ import annotations

import numpy as np

from partir_search.ir.boundaries import Ints
from partir_search.ir.core import Op, Shape, Value
from partir_search.passes.views.along import is_local_map, read_dim
from partir_search.passes.views.indexed import Indexed
from partir_search.passes.views.maps import FILLER
from partir_search.passes.views.write import Writer
from partir_search.rules.construct import added, reshaped, summed
from partir_search.rules.indexing import scatter_combiner, scatter_monoid

MAX_REPETITIONS = 8  # updates of one position


def write_scatter(writer: Writer, op: Op, indexed: Indexed, *, zeros: bool) -> bool:
    """Writes a scatter; False if its positions lie far from the updates.

    Args:
      indexed: index maps of the scatter.
      zeros: True if the operand is all zeros.
    """
    into, _, update = op.operands
    if not isinstance(update, Value):
        return False
    shape, combine, (result,) = into.type.shape, scatter_combiner(op), op.results
    adds = scatter_monoid(op) == "sum"
    inverse_maps = {d: _inverse(at, shape[d]) for d, at in indexed.maps.items()}
    repeated_dims = [d for d, inverses in inverse_maps.items() if len(inverses) > 1]
    if repeated_dims and (
        not adds or len(repeated_dims) > 1 or len(inverse_maps[repeated_dims[0]]) > MAX_REPETITIONS
    ):
        return False
    grid = indexed.grid(shape)
    if not any(is_local_map(inverses[0], grid[d]) for d, inverses in inverse_maps.items()):
        return False
    spans = {d: _span(at, shape[d]) for d, at in indexed.maps.items()}
    if not adds and any(w is None for w in spans.values()):
        return False
    x = indexed.as_grid(writer, op, update, shape)
    repeated_dim = repeated_dims[0] if repeated_dims else -1
    for d, inverses in inverse_maps.items():
        if d != repeated_dim:
            x = read_dim(writer, op, x, d, inverses[0])
    if repeated_dim >= 0:
        x = _sum_repeated(
            writer,
            op,
            x,
            repeated_dim,
            indexed.maps[repeated_dim],
            inverse_maps[repeated_dim],
            shape,
        )
    if adds:
        if zeros:
            writer.renamed(op, x, result)
        else:
            writer.put(op, added(into, x), result)
        return True
    inside = [
        within(writer, op, shape, d, *span)
        for d, span in spans.items()
        if span is not None and span != (0, shape[d], 1)
    ]
    if combine is not None:
        x = writer.put(op, combine(into, x))
    if inside:
        writer.select(op, writer.all_of(op, inside), x, into, result)
    else:
        writer.renamed(op, x, result)
    return True


def _sum_repeated(
    writer: Writer, op: Op, x: Value, dim: int, at: Ints, maps: list[Ints], shape: Shape
) -> Value:
    """Returns `x` with updates of one position added up, along a dim whose positions repeat."""
    n, each = shape[dim], len(at) // shape[dim]
    rest = x.type.shape
    if each * n == len(at) and (at == np.arange(len(at)) // each).all():
        wide = writer.put(op, reshaped(x, (*rest[:dim], n, each, *rest[dim + 1 :])))
        return writer.put(op, summed(wide, dim + 1))
    updates = [read_dim(writer, op, x, dim, m) for m in maps]
    total = updates[0]
    for other in updates[1:]:
        total = writer.put(op, added(total, other))
    return total


def _inverse(at: Ints, n: int) -> list[Ints]:
    """Returns maps from positions to updates, one for each repetition of a position."""
    order = np.argsort(at, kind="stable")
    ranked = at[order]
    begins = np.flatnonzero(np.diff(ranked, prepend=-1))
    times = np.arange(len(at)) - np.repeat(begins, np.diff(begins, append=len(at)))
    found = []
    for k in range(min(int(np.max(times, initial=0)) + 1, MAX_REPETITIONS + 1)):
        sources = np.full(n, FILLER)
        sources[ranked[times == k]] = order[times == k]
        found.append(sources)
    return found


def _span(at: Ints, n: int) -> tuple[int, int, int] | None:
    """Returns (first, end, step) of positions; None if they are not evenly spaced."""
    distinct = np.unique(at)
    steps = np.unique(np.diff(distinct))
    if len(steps) > 1:
        return None
    step = int(steps[0]) if len(steps) else 1
    return int(distinct[0]), int(distinct[-1]) + 1, step


def within(
    writer: Writer, op: Op, shape: Shape, dim: int, start: int, stop: int, step: int
) -> Value:
    """Writes flags: True for positions in [start, stop) of a dim, `step` apart."""
    ends = writer.within(op, shape, dim, start, stop)
    if step == 1:
        return ends
    return writer.all_of(op, [ends, writer.every(op, shape, dim, start % step, step)])
