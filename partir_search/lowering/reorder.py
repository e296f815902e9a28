"""Redistribution between layouts with the axes of one dim in different orders.

Both layouts cut the dim into tiles of one size, and one permute of whole tiles leads from one order
to the other (arXiv 2112.01075, section 4.3). Axes of one layout only are sliced, exchanged or
gathered before or after the permute, by the way with fewest bytes moved.
"""

from __future__ import annotations

import functools
import itertools
import math

from partir_search.ir.partition import Layout, Pending
from partir_search.lowering.reshard import reshard
from partir_search.lowering.reshard_steps import Permute, ReshardStep, Slice


def crosses(source: Layout, target: Layout) -> bool:
    """True if two axes tile a dim in both layouts, in different orders."""
    return any(
        len(s) > 1 < len(t) and _kept(s, t) != _kept(t, s)
        for s, t in zip(source, target, strict=True)
    )


@functools.lru_cache(maxsize=65536)
def reorder(
    sizes: tuple[int, ...], source: Layout, pending: Pending, target: Layout, keep: Pending
) -> tuple[ReshardStep, ...]:
    """Steps from `source` with `pending` sums to `target` with only the sums of `keep` pending.

    Args:
      sizes: of the mesh's axes.
    """
    pairs = list(zip(source, target, strict=True))
    before = tuple((*_kept(t, s), *_without(s, t)) for s, t in pairs)  # the target's order first
    first = tuple((*_kept(s, t), *_without(s, t)) for s, t in pairs)
    after = tuple((*_kept(s, t), *_without(t, s)) for s, t in pairs)  # the source's order first
    left = tuple(p for p in pending if p in keep)
    ways = [reshard(source, pending, target, keep)]
    for begin, end in ((before, target), (source, after), (first, after)):
        ways.append(
            (
                *_permute(sizes, source, begin, pending),
                *reshard(begin, pending, end, keep),
                *_permute(sizes, end, target, left),
            )
        )
    return min(ways, key=lambda steps: _moved(sizes, source, steps))


def _kept(axes: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a for a in axes if a in other)


def _without(axes: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a for a in axes if a not in other)


def _moved(sizes: tuple[int, ...], source: Layout, steps: tuple[ReshardStep, ...]) -> float:
    """Share of the array that the steps' collectives have on a device, added up."""
    total, before = 0.0, _share(sizes, source)
    for step in steps:
        after = _share(sizes, step.layout)
        total += max(before, after) * (not isinstance(step, Slice))
        before = after
    return total


def _share(sizes: tuple[int, ...], layout: Layout) -> float:
    return 1 / math.prod(sizes[a] for axes in layout for a in axes)


def _permute(
    sizes: tuple[int, ...], source: Layout, target: Layout, pending: Pending
) -> tuple[ReshardStep, ...]:
    """The step between layouts with the same axes on each dim; none if they are equal."""
    changed = [(s, t) for s, t in zip(source, target, strict=True) if s != t]
    if not changed:
        return ()
    axes = tuple(sorted(a for s, _ in changed for a in s))
    held: dict[tuple[int, ...], int] = {}
    wanted: list[tuple[int, ...]] = []
    for device, place in enumerate(itertools.product(*(range(sizes[a]) for a in axes))):
        at = dict(zip(axes, place, strict=True))
        held[tuple(_tile(sizes, s, at) for s, _ in changed)] = device
        wanted.append(tuple(_tile(sizes, t, at) for _, t in changed))
    pairs = tuple((held[tile], device) for device, tile in enumerate(wanted))
    if all(a == b for a, b in pairs):  # axes of one device
        return (Slice(axes=(), dim=0, layout=target, pending=pending),)
    return (Permute(axes=axes, pairs=pairs, layout=target, pending=pending),)


def _tile(sizes: tuple[int, ...], axes: tuple[int, ...], at: dict[int, int]) -> int:
    """Index of the tile that the device at these coordinates has along a dim."""
    index = 0
    for a in axes:
        index = index * sizes[a] + at[a]
    return index
