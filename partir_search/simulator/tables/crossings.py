"""Redistributions at the borders of an op's regions (`lowering/regions.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from partir_search.ir.core import Op, Operand, Region, Value
from partir_search.simulator.arrays import Ints
from partir_search.simulator.tables.moves import MoveTable, MoveTables
from partir_search.simulator.tables.sums import Scope
from partir_search.simulator.tables.ways import Picked, Way, rows, tile_layout


def border_tables(moves: MoveTables, op: Op, trips: float) -> Iterator[MoveTable]:
    """Tables of an op's operands, on their way into regions, and of carries' last values."""
    edges = moves.variables.graph.rules[op.id].data_flow
    enters = {
        e.operand: (op.regions[e.region].args[e.argument], e.stacked_dims) for e in edges.inputs
    }
    for i, v in op.inputs():
        inner, stacked = enters.get(i, (None, 0))
        yield from _moved(moves, op, v, v, inner, trips, stacked=stacked)
    for region, argument, result in edges.finals:
        inner, value = op.regions[region].args[argument], op.results[result]
        yield from _moved(moves, op, value, inner, value, trips, settles=True)


def result_tables(
    moves: MoveTables, op: Op, number: int, region: Region, trips: float
) -> Iterator[MoveTable]:
    """Tables of the reshards from a region's results to the values outside the region."""
    edges = moves.variables.graph.rules[op.id].data_flow
    targets: dict[int, tuple[Value, int]] = {}
    for r, i, out, stacked in edges.outputs:
        if r == number:
            targets[i] = op.results[out], stacked
    for r, i, to, j in edges.carries:
        if r == number:
            targets[i] = op.regions[to].args[j], 0
    for i, (target, stacked) in targets.items():
        value: Operand = region.results[i]
        if isinstance(value, Value):
            yield from _moved(moves, None, value, value, target, trips, strip=stacked)


def _moved(
    moves: MoveTables,
    op: Op | None,
    value: Value,
    source: Value,
    target: Value | None,
    trips: float,
    *,
    stacked: int = 0,
    strip: int = 0,
    settles: bool = False,
) -> Iterator[MoveTable]:
    """Table of a value's way from the layout of one value to that of another.

    Args:
      target: None: the value is needed whole.
      stacked / strip: leading dims that the target's layout lacks, or has besides.
    """
    rank, order, variables = len(value.type.shape), moves.order, moves.variables
    if not rank:
        return
    x = variables.of_value(source.id)
    y = variables.of_value(target.id) if target is not None else -1
    if x == y and not (stacked or strip):
        return

    def layout(tiles: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        if target is None:
            return ((),) * rank
        found = tile_layout(tiles, len(target.type.shape), order)
        return ((),) * stacked + found[strip:]

    def join(one: tuple[int, ...], other: tuple[int, ...]) -> Way:
        return Way(tile_layout(one, rank, order), (), layout(other), ())

    sets, ways = variables.sets, moves.ways
    into = None if target is None else len(target.type.shape)
    kind = rank, order, stacked, strip, into
    first = rows(sets[x].codes)
    if y < 0:
        none = Picked([(-1,) * len(order)], np.zeros(1, dtype=np.int64))
        scope: Scope = (x,)
        items = ways.paired(_axis(first, (-1, 1)), _axis(none, (1, 1)), join, kind)[:, 0]
    elif x == y:
        scope = (x,)
        numbers = [ways.number(join(t, t)) for t in first.items]
        items = np.array(numbers, dtype=np.int64)[first.at]
    else:
        second = rows(sets[y].codes)
        scope = x, y
        items = ways.paired(_axis(first, (-1, 1)), _axis(second, (1, -1)), join, kind)
    yield moves.table(op, value, scope, items, trips, settles=settles)


def _axis(picked: Picked[tuple[int, ...]], shape: tuple[int, int]) -> Picked[tuple[int, ...]]:
    at: Ints = picked.at.reshape(shape)
    return Picked(picked.items, at)
