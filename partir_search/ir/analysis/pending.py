"""Pending reductions on their way: where partial results are finished.

A partial result stays pending through its use if that is its only one and lets it through (linear
for sums, monotone for maxima and minima), up to where it shrinks or meets another, so that
gradients added together are reduced once and activations are reduced after they are summed. Else
it is finished where it is made. Where two sums of one parameter would each be scattered and then
added tile by tile (ZeRO with tied weights), the ops in between lose their loop and their values
their tile, and the total is scattered.
"""

from __future__ import annotations

import dataclasses
import heapq
from array import array
from collections.abc import Set

from partir_search.ir.analysis.def_use import Index, Traveller, passing_group
from partir_search.ir.core import Op
from partir_search.ir.rule import KEPT, NONE, TRAVELLING


@dataclasses.dataclass(frozen=True, slots=True)
class _Way:
    """Cost of a pending reduction that travels on: ops that lose their loop, values that lose their
    tile, and values that rest pending.
    """

    monoid: str
    undone: tuple[Op, ...] = ()
    untiled: tuple[int, ...] = ()
    resting: tuple[int, ...] = ()


def travel(index: Index, loops: array[int], tiles: array[int]) -> dict[int, str]:
    """Values that rest pending on one axis, and how they are finished.

    `loops` and `tiles` describe the axis and lose what travelling reductions undo. Ops are visited
    in program order: the operands of an op are made before it.
    """
    consumer = index.consumer
    made: dict[int, _Way] = {}
    resting: dict[int, str] = {}
    queue = [
        t.op.id
        for t in index.reducing
        if loops[t.op.id] >= 0 and t.rule.reducers[loops[t.op.id]] in TRAVELLING
    ]
    waiting = set(queue)

    def make(t: Traveller, way: _Way) -> None:
        for r in t.results:
            made[r] = way
            user = consumer[r]
            if user >= 0 and user not in waiting:
                waiting.add(user)
                heapq.heappush(queue, user)

    while queue:
        t = index.traveller(heapq.heappop(queue))
        f = loops[t.op.id]
        if f >= 0 and t.reduces and t.rule.reducers[f] in TRAVELLING:
            make(t, _Way(t.rule.reducers[f]))
            continue
        free = {v for v in t.single if v in made and tiles[v] != KEPT}
        monoids = {made[v].monoid for v in free}
        if len(monoids) != 1:
            continue
        monoid = monoids.pop()
        growth = _growth(index, t, monoid, free)
        if growth is None or growth > 0:
            continue
        way = _Way(
            monoid,
            ((t.op,) if f >= 0 else ()) + tuple(o for v in free for o in made[v].undone),
            tuple(v for v in free if tiles[v] >= 0)
            + tuple(w for v in free for w in made[v].untiled),
            tuple(free) + tuple(w for v in free for w in made[v].resting),
        )
        if len(free) == 1 and (way.undone or way.untiled or not growth):
            make(t, way)
            continue
        for o in way.undone:
            loops[o.id] = NONE
            resting.update((v.id, monoid) for _, v in o.inputs() if v.id in made)
        for v in way.untiled:
            tiles[v] = NONE
        resting.update((v, monoid) for v in way.resting)
        make(t, _Way(monoid))
    return resting


def _growth(index: Index, t: Traveller, monoid: str, pending: Set[int]) -> int | None:
    """Bytes that reducing after the op moves beyond those of reducing before it; None where
    nothing pending passes.
    """
    key = t.op.id, monoid, frozenset(pending)
    if key not in index.growth:
        growth = None
        if passing_group(t.op, t.rule, monoid, pending, index.zeros):
            before = sum(v.type.nbytes for _, v in t.op.inputs() if v.id in pending)
            growth = sum(r.type.nbytes for r in t.op.results) - before
        index.growth[key] = growth
    return index.growth[key]
