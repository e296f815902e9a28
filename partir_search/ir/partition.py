"""A partition: the base module plus, per mesh axis, two flat arrays.

`loops[axis][op.id]` is the factor that the op loops over (or `NONE`), `tiles[axis][value.id]` the
dim on which the value is tiled (or `NONE`, or `KEPT`: decided to stay whole). Everything else is
derived: layouts, partial sums, loop nests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import MutableSequence, Sequence, Set

import numpy as np

from partir_search.ir.core import Module, Op, Shape, Value
from partir_search.ir.index import Index, linear_group
from partir_search.ir.mesh import MeshShape
from partir_search.ir.rule import NONE, OpRule

KEPT = -2
_NOTHING: tuple[tuple[Op, ...], tuple[int, ...], tuple[int, ...]] = ((), (), ())

Layout = tuple[tuple[int, ...], ...]  # per dim, the axes that tile it, major to minor
Pending = tuple[tuple[int, str], ...]  # (axis, monoid) of unfinished reductions


@dataclasses.dataclass(eq=False, slots=True)
class Partition:
    """What each axis does to each op and value of `module`.

    Attributes:
      rules: rule per op id.
      loops: [axes][ops] factor or NONE.
      tiles: [axes][values] dim, NONE or KEPT.
      index: facts of the module and rules that walks need.
      order: axes from major to minor, the order in which several axes tile one dim.
      travelling: [axes] ids of values that rest as pending sums.
    """

    module: Module
    mesh: MeshShape
    rules: Sequence[OpRule]
    loops: Sequence[MutableSequence[int]]
    tiles: Sequence[MutableSequence[int]]
    index: Index
    order: tuple[int, ...] = ()
    travelling: tuple[frozenset[int], ...] = ()

    def __post_init__(self) -> None:
        if not self.order:
            self.order = axis_order(self)
        if not self.travelling:
            self.travelling = tuple(travel(self, a) for a in range(len(self.mesh.names)))

    def layout(self, value: Value) -> Layout:
        """The layout in which `value` rests."""
        rank = len(value.type.shape)
        if not rank:
            return ()
        dims: list[tuple[int, ...]] = [()] * rank
        for axis in self.order:
            d = self.tiles[axis][value.id]
            if d >= 0:
                dims[d] = (*dims[d], axis)
        return tuple(dims)

    def op_layout(self, op: Op, dims: Sequence[int]) -> Layout:
        """Layout that the op's loops give to an operand or result of factors `dims`."""
        out: list[tuple[int, ...]] = [()] * len(dims)
        for axis in self.order:
            f = self.loops[axis][op.id]
            if f >= 0 and f in dims:
                d = dims.index(f)
                out[d] = (*out[d], axis)
        return tuple(out)

    def made_pending(self, op: Op, result: int) -> Pending:
        """Reductions that the op itself leaves unfinished in a result."""
        rule, out = self.rules[op.id], []
        for axis in self.order:
            f = self.loops[axis][op.id]
            if f >= 0 and f not in rule.results[result]:
                out.append((axis, rule.reducers[f]))
            elif f < 0 and any(v.id in self.travelling[axis] for _, v in op.inputs()):
                out.append((axis, "sum"))
        return tuple(out)

    def rest_pending(self, value: Value) -> Pending:
        """Reductions still unfinished where `value` rests."""
        return tuple((a, "sum") for a in self.order if value.id in self.travelling[a])

    def tiles_of(self, op: Op, factor: int) -> int:
        """Number of tiles along a factor of the op."""
        n = 1
        for axis, size in enumerate(self.mesh.sizes):
            if self.loops[axis][op.id] == factor:
                n *= size
        return n

    def local_shape(self, shape: Shape, layout: Layout) -> Shape:
        out = []
        for n, axes in zip(shape, layout, strict=True):
            for axis in axes:
                n //= self.mesh.sizes[axis]
            out.append(n)
        return tuple(out)


def axis_order(partition: Partition) -> tuple[int, ...]:
    """Major to minor order of axes: those that are gathered away at uses come last.

    Where one dim is tiled by several axes and an op needs it on some of them only, the axes it
    does not need must be minor, so that one all_gather takes them off. Ties keep the mesh's order.
    """
    axes = range(len(partition.mesh.names))
    gathered = [0] * len(axes)
    tiles, loops = partition.tiles, partition.loops
    shared: dict[int, list[tuple[int, int]]] = {}
    rows = [np.asarray(row, dtype=np.int8) for row in tiles]
    for a in axes:
        for b in range(a + 1, len(axes)):
            for v in np.flatnonzero((rows[a] >= 0) & (rows[a] == rows[b])).tolist():
                shared.setdefault(v, []).append((a, b))
    if shared:
        for op in partition.module.ops:
            if shared.keys().isdisjoint(partition.index.around[op.id]):
                continue
            rule = partition.rules[op.id]
            for i, value in op.inputs():
                for a, b in shared.get(value.id, ()):
                    dims, d = rule.operands[i], tiles[a][value.id]
                    on_a = loops[a][op.id] >= 0 and dims[d] == loops[a][op.id]
                    on_b = loops[b][op.id] >= 0 and dims[d] == loops[b][op.id]
                    if on_a != on_b:
                        gathered[b if on_a else a] += op.count
    return tuple(sorted(axes, key=lambda a: (gathered[a], a)))


def travel(partition: Partition, axis: int) -> frozenset[int]:
    """Values that rest as pending sums on `axis`.

    A partial sum stays pending through its use if that is its only one and linear in it, up to
    where it shrinks or meets another, so that gradients added together are reduced once and
    activations are reduced after they are summed. Else it is finished where it is made. Where two
    sums of one parameter would each be scattered and then added tile by tile (ZeRO with tied
    weights), the ops in between lose their loop on this axis and the total is scattered. One walk
    in program order: the operands of an op are made before it.
    """
    zeros = partition.index.zeros
    loops, tiles = partition.loops[axis], partition.tiles[axis]
    # What must lose its loop, lose its tile, and rest pending if the sum goes on from a value.
    made: dict[int, tuple[tuple[Op, ...], tuple[int, ...], tuple[int, ...]]] = {}
    resting: set[int] = set()
    for t in partition.index.travellers:
        f = loops[t.op.id]
        if f >= 0 and t.sums and t.rule.reducers[f] == "sum":
            for r in t.results:
                made[r] = _NOTHING
            continue
        free = {v for v in t.single if v in made and tiles[v] != KEPT} if made else None
        if not free or not linear_group(t.op, t.rule, free, zeros):
            continue
        growth = _growth(t.op, free)
        if growth > 0:
            continue
        undone = ((t.op,) if f >= 0 else ()) + tuple(o for v in free for o in made[v][0])
        untiled = tuple(v for v in free if tiles[v] >= 0)
        untiled += tuple(w for v in free for w in made[v][1])
        rests = tuple(free) + tuple(w for v in free for w in made[v][2])
        if len(free) == 1 and (undone or untiled or not growth):
            made.update((r, (undone, untiled, rests)) for r in t.results)
            continue
        for o in undone:
            loops[o.id] = NONE
            resting.update(v.id for _, v in o.inputs() if v.id in made)
        for v in untiled:
            tiles[v] = NONE
        resting.update(rests)
        made.update((r, _NOTHING) for r in t.results)
    return frozenset(resting)


def _growth(op: Op, pending: Set[int]) -> int:
    """Bytes that reducing after the op moves beyond those of reducing before it."""
    before = sum(v.type.nbytes for _, v in op.inputs() if v.id in pending)
    return sum(r.type.nbytes for r in op.results) - before
