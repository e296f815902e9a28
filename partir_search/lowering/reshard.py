"""Redistribution between layouts: reductions, then slices, all_to_alls and gathers.

A partial sum is finished first: by a reduce_scatter if the target tiles a dim on the sum's axis, by
an all_reduce if not. Slices, all_to_alls and gathers follow in the normal form of arXiv
2112.01075, section 4.3, whose memory never exceeds the larger of source and target. If an axis must
change places with an axis of the same dim, the minor axes are gathered first; the cheaper permutes
of the paper are in `lowering/reorder.py`.
"""

from __future__ import annotations

import dataclasses
import functools

from partir_search.ir.partition import Layout, Partial
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
    source: Layout, partial: Partial, target: Layout, keep: Partial = ()
) -> tuple[ReshardStep, ...]:
    """Steps from `source` with `partial` sums to `target` with the sums of `keep` unfinished."""
    steps: list[ReshardStep] = []
    current = list(source)
    remaining = list(partial)
    finish = [p for p in partial if p not in keep]
    for axis, monoid in finish:
        dim = next(
            (
                d
                for d, axes in enumerate(target)
                if axes[: len(current[d]) + 1] == (*current[d], axis) and monoid == "sum"
            ),
            -1,
        )
        if dim >= 0:
            current[dim] = (*current[dim], axis)
            remaining.remove((axis, monoid))
            scatter = ReduceScatter(
                axes=(axis,),
                dim=dim,
                monoid=monoid,
                layout=tuple(current),
                partial=tuple(remaining),
            )
            steps.append(scatter)
    for monoid in dict.fromkeys(m for _, m in finish):
        axes = tuple(a for a, m in remaining if m == monoid and (a, m) not in keep)
        if axes:
            remaining = [(a, m) for a, m in remaining if not (m == monoid and a in axes)]
            layout, partial = tuple(current), tuple(remaining)
            steps.append(AllReduce(axes=axes, monoid=monoid, layout=layout, partial=partial))
    unfinished = tuple(remaining)
    while tuple(current) != target:
        step: ReshardStep = (
            _slice(current, target, unfinished)
            or _exchange(current, target, unfinished)
            or _gather(current, target, unfinished)
        )
        current = list(step.layout)
        last = steps[-1] if steps else None
        if isinstance(last, AllGather) and isinstance(step, AllGather) and last.dim == step.dim:
            steps[-1] = dataclasses.replace(step, axes=step.axes + last.axes)
        else:
            steps.append(step)
    return tuple(steps)


def _wanted(current: list[tuple[int, ...]], target: Layout) -> list[tuple[int, tuple[int, ...]]]:
    """(dim, axes) pairs: axes to add on the minor side of a dim's current axes."""
    return [
        (d, axes[len(current[d]) :])
        for d, axes in enumerate(target)
        if len(axes) > len(current[d]) and axes[: len(current[d])] == current[d]
    ]


def _slice(
    current: list[tuple[int, ...]], target: Layout, unfinished: Partial
) -> ReshardStep | None:
    used = {a for axes in current for a in axes}
    for d, (axis, *_) in _wanted(current, target):
        if axis not in used:
            after = [*current[:d], (*current[d], axis), *current[d + 1 :]]
            return Slice(axes=(axis,), dim=d, layout=tuple(after), partial=unfinished)
    return None


def _exchange(
    current: list[tuple[int, ...]], target: Layout, unfinished: Partial
) -> ReshardStep | None:
    for d, wanted in _wanted(current, target):
        for k in range(len(wanted), 0, -1):  # as many axes as possible in one all_to_all
            for e, minor in enumerate(current):
                if e != d and minor[-k:] == wanted[:k]:
                    after = list(current)
                    after[e], after[d] = minor[:-k], (*current[d], *wanted[:k])
                    return AllToAll(
                        axes=wanted[:k], dim=e, split_dim=d, layout=tuple(after), partial=unfinished
                    )
    return None


def _gather(current: list[tuple[int, ...]], target: Layout, unfinished: Partial) -> AllGather:
    for d, axes in enumerate(current):
        if axes and target[d][: len(axes)] != axes:
            after = [*current[:d], axes[:-1], *current[d + 1 :]]
            return AllGather(axes=(axes[-1],), dim=d, layout=tuple(after), partial=unfinished)
    raise AssertionError(f"no step from {current} to {target}")  # pragma: no cover
