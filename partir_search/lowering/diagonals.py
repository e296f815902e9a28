"""Redistribution on meshes with diagonals.

Devices have no links along a diagonal. A tiling on the diagonal r~c is a tiling on r or c with
permuted blocks. A collective along the diagonal becomes one along the free axis, with a permute of
blocks before or after; between layouts with the same blocks in different places a permute suffices.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Layout, Pending
from partir_search.ir.skewed_schedule import COORDINATES, Edge
from partir_search.lowering.reorder import crosses, reorder
from partir_search.lowering.reshard import reshard
from partir_search.lowering.reshard_steps import Permute, ReshardStep, Slice

Triple = tuple[int, int, int, int]  # two axes, their diagonal, and the size of each


def shuffle(
    axes: tuple[int, ...], pairs: tuple[Edge, ...], layout: Layout, pending: Pending
) -> Permute:
    """A permute of whole blocks, to `layout`."""
    return Permute(axes=axes, pairs=pairs, layout=layout, pending=pending)


def redistribute(
    mesh: MeshShape, source: Layout, pending: Pending, target: Layout, keep: Pending = ()
) -> tuple[ReshardStep, ...]:
    """`reshard`, with permutes of blocks for diagonals and for axes that change places on a dim."""
    if not mesh.diagonals:
        if crosses(source, target):
            return reorder(mesh.sizes, source, pending, target, keep)
        return reshard(source, pending, target, keep)
    triples = tuple((*t, mesh.sizes[t[0]]) for t in mesh.triples)
    return _redistribute(triples, source, pending, target, keep)


@functools.lru_cache(maxsize=65536)
def _redistribute(
    triples: tuple[Triple, ...], source: Layout, pending: Pending, target: Layout, keep: Pending
) -> tuple[ReshardStep, ...]:
    finish = {a for a, m in pending if (a, m) not in keep}
    used = {a for dims in (source, target) for axes in dims for a in axes} | finish
    for i, triple in enumerate(triples):
        if triple[2] not in used or _grows(triple, source, finish, target):
            continue
        rest = triples[:i] + triples[i + 1 :]
        steps = min(
            _by_way_of(rest, triple, source, pending, target, keep),
            key=lambda steps: sum(not isinstance(s, Slice) for s in steps),
        )
        left = tuple(p for p in pending if p in keep)
        assert (steps[-1].layout, steps[-1].pending) == (target, left)
        return steps
    return reshard(source, pending, target, keep)


def without_diagonals(mesh: MeshShape, layout: Layout) -> Layout:
    """The same blocks without diagonals: how a user's array is tiled."""
    for triple in mesh.triples:
        if any(triple[2] in axes for axes in layout):
            layout = _renamed(layout, triple[2], _free((*triple, 0), layout, set())[-1])
    return layout


def _grows(triple: Triple, source: Layout, finish: set[int], target: Layout) -> bool:
    """True if the three axes keep their places, or slices add axes."""
    there = dict(_places(triple, target))
    kept = all(there.get(place) == a for place, a in _places(triple, source))
    return kept and finish.isdisjoint(triple[:3])


def _places(triple: Triple, layout: Layout) -> Iterator[tuple[tuple[int, int], int]]:
    for d, axes in enumerate(layout):
        for i, a in enumerate(axes):
            if a in triple[:3]:
                yield (d, i), a


def _free(triple: Triple, layout: Layout, pending: set[int]) -> list[int]:
    """Axes that the diagonal may be renamed to, once blocks are permuted."""
    used = pending | {a for axes in layout for a in axes}
    return [a for a in triple[:2] if a not in used] if triple[2] in used else [triple[2]]


def _renamed(layout: Layout, axis: int, name: int) -> Layout:
    return tuple(tuple(name if a == axis else a for a in axes) for axes in layout)


def _by_way_of(
    rest: tuple[Triple, ...],
    triple: Triple,
    source: Layout,
    pending: Pending,
    target: Layout,
    keep: Pending,
) -> Iterator[tuple[ReshardStep, ...]]:
    """Ways to do it: straighten, redistribute without the diagonal, skew."""
    held = {a for a, _ in pending}
    finish = {a for a, m in pending if (a, m) not in keep}
    masked = [
        [["*" if a in triple[:3] else a for a in axes] for axes in layout]
        for layout in (source, target)
    ]
    if masked[0] == masked[1] and finish.isdisjoint(triple[:3]):
        permute = _permute(triple, source, pending, target, pending)
        yield (permute, *_redistribute(rest, target, pending, target, keep))
        return
    diagonal = triple[2]
    used = {a for _, a in _places(triple, source)} | held.intersection(triple[:3])
    for x, y in itertools.product(_free(triple, source, held), _free(triple, target, set())):
        steps: list[ReshardStep] = []
        begin, end = _renamed(source, diagonal, x), _renamed(target, diagonal, y)
        left = tuple((x if a == diagonal else a, m) for a, m in pending)
        # With no other of the three, rows of devices would add the same up in different orders.
        lone = diagonal in finish and used == {diagonal}
        if begin != source or lone:
            steps.append(_permute(triple, source, pending, begin, left))
        steps += _redistribute(rest, begin, left, end, keep)
        if end != target:
            steps.append(_permute(triple, end, keep, target, keep))
        yield tuple(steps)


def _permute(
    triple: Triple, source: Layout, pending: Pending, target: Layout, left: Pending
) -> Permute:
    """The same blocks in other places, partial sums (`pending` before, `left` after) included:
    blocks of one sum stay together.
    """
    there = dict(_places(triple, target))
    pairs_of = [(a, there[p]) for p, a in _places(triple, source)]
    pairs_of += [(a, b) for (a, _), (b, _) in zip(pending, left, strict=True) if a in triple[:3]]
    names = [(triple.index(a), triple.index(b)) for a, b in pairs_of]
    taken = {w for pair in names for w in pair}
    if len(names) == 1:
        other = next(w for w in (0, 1, 2) if w not in taken)
        names.append((other, other))
    n = triple[3]
    devices = list(itertools.product(range(n), range(n)))

    def block(which: int, device: tuple[int, int]) -> int:
        (a, b), (r, c) = COORDINATES[which], device
        return (a * r + b * c) % n

    holder = {tuple(block(s, d) for s, _ in names): i for i, d in enumerate(devices)}
    pairs = tuple((holder[tuple(block(t, d) for _, t in names)], i) for i, d in enumerate(devices))
    return shuffle(triple[:2], pairs, target, left)
