"""Redistribution on meshes with diagonals.

No collective runs along a diagonal, as devices have no links along a diagonal. A tiling on the
diagonal r~c equals a tiling on r or c with blocks permuted among devices. Redistribution permutes
the blocks to a free axis, runs the collective along the axis, and permutes blocks to the target's
diagonal. If both layouts have the same blocks on different devices, one permute is enough.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Layout, Partial
from partir_search.ir.skewed_schedule import COORDINATES, Edge
from partir_search.lowering.reorder import crosses, reorder
from partir_search.lowering.reshard import reshard
from partir_search.lowering.reshard_steps import Permute, ReshardStep, Slice

Triple = tuple[int, int, int, int]  # two axes, their diagonal, and the size of each


def permute_blocks(
    axes: tuple[int, ...], pairs: tuple[Edge, ...], layout: Layout, partial: Partial
) -> Permute:
    """Permute of whole blocks to `layout` with `partial` sums."""
    return Permute(axes=axes, pairs=pairs, layout=layout, partial=partial)


def redistribute(
    mesh: MeshShape, source: Layout, partial: Partial, target: Layout, keep: Partial = ()
) -> tuple[ReshardStep, ...]:
    """Steps from `source` with `partial` sums to `target` with only the sums of `keep` unfinished.

    As `reshard`, with permutes of blocks for tilings on diagonals, and for axes that change places
    on a dim.
    """
    if not mesh.diagonals:
        if crosses(source, target):
            return reorder(mesh.sizes, source, partial, target, keep)
        return reshard(source, partial, target, keep)
    triples = tuple((*t, mesh.sizes[t[0]]) for t in mesh.triples)
    return _redistribute(triples, source, partial, target, keep)


@functools.lru_cache(maxsize=65536)
def _redistribute(
    triples: tuple[Triple, ...], source: Layout, partial: Partial, target: Layout, keep: Partial
) -> tuple[ReshardStep, ...]:
    finish = {a for a, m in partial if (a, m) not in keep}
    used = {a for dims in (source, target) for axes in dims for a in axes} | finish
    for i, triple in enumerate(triples):
        if triple[2] not in used or _only_slices(triple, source, finish, target):
            continue
        rest = triples[:i] + triples[i + 1 :]
        steps = min(
            _without_diagonal(rest, triple, source, partial, target, keep),
            key=lambda steps: sum(not isinstance(s, Slice) for s in steps),
        )
        remaining = tuple(p for p in partial if p in keep)
        assert (steps[-1].layout, steps[-1].partial) == (target, remaining)
        return steps
    return reshard(source, partial, target, keep)


def without_diagonals(mesh: MeshShape, layout: Layout) -> Layout:
    """Layout of the same blocks without diagonals, as a user's array is tiled."""
    for triple in mesh.triples:
        if any(triple[2] in axes for axes in layout):
            layout = _renamed(layout, triple[2], _free_axes((*triple, 0), layout, set())[-1])
    return layout


def _only_slices(triple: Triple, source: Layout, finish: set[int], target: Layout) -> bool:
    """True if every tiling on the three axes stays in place; new tilings may be sliced."""
    there = dict(_positions(triple, target))
    kept = all(there.get(place) == a for place, a in _positions(triple, source))
    return kept and finish.isdisjoint(triple[:3])


def _positions(triple: Triple, layout: Layout) -> Iterator[tuple[tuple[int, int], int]]:
    for d, axes in enumerate(layout):
        for i, a in enumerate(axes):
            if a in triple[:3]:
                yield (d, i), a


def _free_axes(triple: Triple, layout: Layout, partial: set[int]) -> list[int]:
    """Axes that may replace the diagonal, after a permute of blocks; the diagonal if unused."""
    used = partial | {a for axes in layout for a in axes}
    return [a for a in triple[:2] if a not in used] if triple[2] in used else [triple[2]]


def _renamed(layout: Layout, axis: int, name: int) -> Layout:
    return tuple(tuple(name if a == axis else a for a in axes) for axes in layout)


def _without_diagonal(
    rest: tuple[Triple, ...],
    triple: Triple,
    source: Layout,
    partial: Partial,
    target: Layout,
    keep: Partial,
) -> Iterator[tuple[ReshardStep, ...]]:
    """Candidates: permute to axes r or c, redistribute without the diagonal, permute back."""
    partial_axes = {a for a, _ in partial}
    finish = {a for a, m in partial if (a, m) not in keep}
    masked = [
        [["*" if a in triple[:3] else a for a in axes] for axes in layout]
        for layout in (source, target)
    ]
    if masked[0] == masked[1] and finish.isdisjoint(triple[:3]):
        permute = _permute(triple, source, partial, target, partial)
        yield (permute, *_redistribute(rest, target, partial, target, keep))
        return
    diagonal = triple[2]
    used = {a for _, a in _positions(triple, source)} | partial_axes.intersection(triple[:3])
    for x, y in itertools.product(
        _free_axes(triple, source, partial_axes), _free_axes(triple, target, set())
    ):
        steps: list[ReshardStep] = []
        begin, end = _renamed(source, diagonal, x), _renamed(target, diagonal, y)
        remaining = tuple((x if a == diagonal else a, m) for a, m in partial)
        # Without a second of the three axes, rows of devices would add the same summands in
        # different orders.
        lone = diagonal in finish and used == {diagonal}
        if begin != source or lone:
            steps.append(_permute(triple, source, partial, begin, remaining))
        steps += _redistribute(rest, begin, remaining, end, keep)
        if end != target:
            steps.append(_permute(triple, end, keep, target, keep))
        yield tuple(steps)


def _permute(
    triple: Triple, source: Layout, partial: Partial, target: Layout, remaining: Partial
) -> Permute:
    """Permute of the same blocks to the devices of `target`.

    Partial sums, on the axes of `partial` before and of `remaining` after, move alike: the summands
    of one block stay on devices of one group.
    """
    there = dict(_positions(triple, target))
    pairs_of = [(a, there[p]) for p, a in _positions(triple, source)]
    pairs_of += [
        (a, b) for (a, _), (b, _) in zip(partial, remaining, strict=True) if a in triple[:3]
    ]
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
    return permute_blocks(triple[:2], pairs, target, remaining)
