"""Redistribution from one layout to another by slices, all_to_alls and gathers.

The steps come in this order (the normal form of arXiv 2112.01075, section 4.3: never more memory
than the larger side), unless axes change places on a dim: then minor axes are gathered first, at
more cost than the permutes of `lowering/reorder.py`. A partial sum is finished first, by
reduce_scatter if the target tiles a dim on the sum's axis.
"""

from __future__ import annotations

import dataclasses
import functools

from partir_search.ir.partition import Layout, Pending
from partir_search.lowering.reshard_steps import (
    AllGather,
    AllReduce,
    AllToAll,
    ReduceScatter,
    ReshardStep,
    Slice,
)


@functools.lru_cache(maxsize=65536)
def reshard(
    source: Layout, pending: Pending, target: Layout, keep: Pending = ()
) -> tuple[ReshardStep, ...]:
    """Steps from `source` with `pending` sums to `target` with only the sums of `keep` pending."""
    steps: list[ReshardStep] = []
    now = list(source)
    left = list(pending)
    finish = [p for p in pending if p not in keep]
    for axis, monoid in finish:
        dim = next(
            (
                d
                for d, axes in enumerate(target)
                if axes[: len(now[d]) + 1] == (*now[d], axis) and monoid == "sum"
            ),
            -1,
        )
        if dim >= 0:
            now[dim] = (*now[dim], axis)
            left.remove((axis, monoid))
            scatter = ReduceScatter(
                axes=(axis,), dim=dim, monoid=monoid, layout=tuple(now), pending=tuple(left)
            )
            steps.append(scatter)
    for monoid in dict.fromkeys(m for _, m in finish):
        axes = tuple(a for a, m in left if m == monoid and (a, m) not in keep)
        if axes:
            left = [(a, m) for a, m in left if not (m == monoid and a in axes)]
            layout, pending = tuple(now), tuple(left)
            steps.append(AllReduce(axes=axes, monoid=monoid, layout=layout, pending=pending))
    held = tuple(left)
    while tuple(now) != target:
        step: ReshardStep = (
            _slice(now, target, held) or _exchange(now, target, held) or _gather(now, target, held)
        )
        now = list(step.layout)
        last = steps[-1] if steps else None
        if isinstance(last, AllGather) and isinstance(step, AllGather) and last.dim == step.dim:
            steps[-1] = dataclasses.replace(step, axes=step.axes + last.axes)
        else:
            steps.append(step)
    return tuple(steps)


def _wanted(now: list[tuple[int, ...]], target: Layout) -> list[tuple[int, tuple[int, ...]]]:
    """(dim, axes) pairs: axes to add to a dim whose present axes begin its target."""
    return [
        (d, axes[len(now[d]) :])
        for d, axes in enumerate(target)
        if len(axes) > len(now[d]) and axes[: len(now[d])] == now[d]
    ]


def _slice(now: list[tuple[int, ...]], target: Layout, held: Pending) -> ReshardStep | None:
    used = {a for axes in now for a in axes}
    for d, (axis, *_) in _wanted(now, target):
        if axis not in used:
            after = [*now[:d], (*now[d], axis), *now[d + 1 :]]
            return Slice(axes=(axis,), dim=d, layout=tuple(after), pending=held)
    return None


def _exchange(now: list[tuple[int, ...]], target: Layout, held: Pending) -> ReshardStep | None:
    for d, wanted in _wanted(now, target):
        for k in range(len(wanted), 0, -1):  # several axes at once where they move together
            for e, minor in enumerate(now):
                if e != d and minor[-k:] == wanted[:k]:
                    after = list(now)
                    after[e], after[d] = minor[:-k], (*now[d], *wanted[:k])
                    return AllToAll(
                        axes=wanted[:k], dim=e, split_dim=d, layout=tuple(after), pending=held
                    )
    return None


def _gather(now: list[tuple[int, ...]], target: Layout, held: Pending) -> AllGather:
    for d, axes in enumerate(now):
        if axes and target[d][: len(axes)] != axes:
            after = [*now[:d], axes[:-1], *now[d + 1 :]]
            return AllGather(axes=(axes[-1],), dim=d, layout=tuple(after), pending=held)
    raise AssertionError(f"no step from {now} to {target}")  # pragma: no cover
