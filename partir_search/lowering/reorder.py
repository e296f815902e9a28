"""Redistribution between layouts with the axes of one dim in different orders.

One permute of whole tiles changes the order of axes (arXiv 2112.01075, section 4.3). Axes on the
dim in only one of the layouts are sliced, exchanged or gathered before or after the permute as
minor axes, whichever moves fewest bytes.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from partir_search.ir.partition import Layout, Partial
from partir_search.lowering.reshard import reshard
from partir_search.lowering.reshard_steps import Edges, Permute, ReshardStep, Slice


def crosses(source: Layout, target: Layout) -> bool:
    """True if two axes on a dim in both layouts differ in order, or follow one exchanged."""
    held = {a for axes in source for a in axes} & {a for axes in target for a in axes}
    for s, t in zip(source, target, strict=True):
        if len(s) + len(t) > 2 and (kept := _kept(t, s)):
            before, after = (tuple(a for a in axes if a in held) for axes in (s, t))
            if before[: len(kept)] != kept or after[: len(kept)] != kept:
                return True
    return False


@functools.lru_cache(maxsize=65536)
def reorder(
    sizes: tuple[int, ...], source: Layout, partial: Partial, target: Layout, keep: Partial
) -> tuple[ReshardStep, ...]:
    """Steps from `source` with `partial` sums to `target` with only the sums of `keep` unfinished.

    Args:
      sizes: sizes of the mesh's axes.
    """
    pairs = list(zip(source, target, strict=True))
    # Common axes in the target's order before `reshard`, or in the source's order after it.
    before = tuple((*_kept(t, s), *_without(s, t)) for s, t in pairs)
    first = tuple((*_kept(s, t), *_without(s, t)) for s, t in pairs)
    after = tuple((*_kept(s, t), *_without(t, s)) for s, t in pairs)
    remaining = tuple(p for p in partial if p in keep)
    candidates = [reshard(source, partial, target, keep)]
    for begin, end in ((before, target), (source, after), (first, after)):
        candidates.append(
            (
                *_permute(sizes, source, begin, partial),
                *reshard(begin, partial, end, keep),
                *_permute(sizes, end, target, remaining),
            )
        )
    return min(candidates, key=lambda steps: _moved(sizes, source, steps))


def _kept(axes: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a for a in axes if a in other)


def _without(axes: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a for a in axes if a not in other)


def _moved(sizes: tuple[int, ...], source: Layout, steps: tuple[ReshardStep, ...]) -> float:
    """Sum over collectives of the fraction of the array on a device, larger of before and after."""
    total, before = 0.0, _share(sizes, source)
    for step in steps:
        after = _share(sizes, step.layout)
        total += max(before, after) * (not isinstance(step, Slice))
        before = after
    return total


def _share(sizes: tuple[int, ...], layout: Layout) -> float:
    return 1 / math.prod(sizes[a] for axes in layout for a in axes)


def _permute(
    sizes: tuple[int, ...], source: Layout, target: Layout, partial: Partial
) -> tuple[ReshardStep, ...]:
    """Step between layouts with the same axes on each dim in different orders; () if equal."""
    changed = [(s, t) for s, t in zip(source, target, strict=True) if s != t]
    if not changed:
        return ()
    axes = tuple(sorted(a for s, _ in changed for a in s))
    devices = np.arange(math.prod(sizes[a] for a in axes)).reshape([sizes[a] for a in axes])
    holders, takers = (
        devices.transpose([axes.index(a) for dim in each for a in dim]).ravel()
        for each in zip(*changed, strict=True)
    )  # [tiles] of the changed dims
    source_of = np.empty(devices.size, dtype=np.int64)
    source_of[takers] = holders
    pairs = Edges(zip(source_of.tolist(), range(devices.size), strict=True))
    if all(a == b for a, b in pairs):  # only axes of size 1 change places
        return (Slice(axes=(), dim=0, layout=target, partial=partial),)
    return (Permute(axes=axes, pairs=pairs, layout=target, partial=partial),)
