"""Redistribution: from one layout to another by slices, all_to_alls and gathers.

In that order (the normal form of arXiv 2112.01075, section 4.3: never more memory than the larger
side) as long as no axis must change places with another on its dim. Where one must, the axes
minor to it are gathered first: right, but dearer than the permutes of the paper, which stand in
`lowering/reorder.py`. A pending sum is finished first, by reduce_scatter where the target tiles a
dim on its axis.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from partir_search.ir.partition import Layout, Pending
from partir_search.ir.skewed_schedule import Edge

COLLECTIVES = (
    "all_gather",
    "all_reduce",
    "reduce_scatter",
    "all_to_all",
    "collective_permute",
)
SLICE = "slice"
WINDOW = "window"


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One move of a value.

    Attributes:
      kind: one of `COLLECTIVES`, or "slice" or "window" (no communication).
      axes: mesh axes, major to minor.
      dim: dim sliced, gathered, scattered, or (all_to_all) gathered.
      to_dim: dim that an all_to_all splits; else -1.
      monoid: of reductions; else "".
      layout / pending: of the value afterwards.
      detail: of a permute or a window (see `lowering/halo.py`).
    """

    kind: str
    axes: tuple[int, ...]
    dim: int
    to_dim: int
    monoid: str
    layout: Layout
    pending: Pending
    detail: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Shuffle:
    """A permute of whole blocks.

    Attributes:
      pairs: (source, target), positions along the step's axes jointly.
    """

    pairs: tuple[Edge, ...]


@functools.lru_cache(maxsize=65536)
def reshard(
    source: Layout, pending: Pending, target: Layout, keep: Pending = ()
) -> tuple[Step, ...]:
    """Steps from `source` with `pending` sums to `target` with only the sums of `keep` pending."""
    steps: list[Step] = []
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
            steps.append(Step("reduce_scatter", (axis,), dim, -1, monoid, tuple(now), tuple(left)))
    for monoid in dict.fromkeys(m for _, m in finish):
        axes = tuple(a for a, m in left if m == monoid and (a, m) not in keep)
        if axes:
            left = [(a, m) for a, m in left if not (m == monoid and a in axes)]
            steps.append(Step("all_reduce", axes, -1, -1, monoid, tuple(now), tuple(left)))
    held = tuple(left)
    while tuple(now) != target:
        step = (
            _slice(now, target, held) or _exchange(now, target, held) or _gather(now, target, held)
        )
        now = list(step.layout)
        last = steps[-1] if steps else None
        if last and step.kind == last.kind == "all_gather" and last.dim == step.dim:
            steps[-1] = dataclasses.replace(step, axes=step.axes + last.axes)
        else:
            steps.append(step)
    return tuple(steps)


def _wanted(now: list[tuple[int, ...]], target: Layout) -> list[tuple[int, tuple[int, ...]]]:
    """(dim, axes) pairs that extend a dim to its target as it stands."""
    return [
        (d, axes[len(now[d]) :])
        for d, axes in enumerate(target)
        if len(axes) > len(now[d]) and axes[: len(now[d])] == now[d]
    ]


def _slice(now: list[tuple[int, ...]], target: Layout, held: Pending) -> Step | None:
    used = {a for axes in now for a in axes}
    for d, (axis, *_) in _wanted(now, target):
        if axis not in used:
            after = [*now[:d], (*now[d], axis), *now[d + 1 :]]
            return Step(SLICE, (axis,), d, -1, "", tuple(after), held)
    return None


def _exchange(now: list[tuple[int, ...]], target: Layout, held: Pending) -> Step | None:
    for d, wanted in _wanted(now, target):
        for k in range(len(wanted), 0, -1):  # several axes at once where they move together
            for e, minor in enumerate(now):
                if e != d and minor[-k:] == wanted[:k]:
                    after = list(now)
                    after[e], after[d] = minor[:-k], (*now[d], *wanted[:k])
                    return Step("all_to_all", wanted[:k], e, d, "", tuple(after), held)
    return None


def _gather(now: list[tuple[int, ...]], target: Layout, held: Pending) -> Step:
    for d, axes in enumerate(now):
        if axes and target[d][: len(axes)] != axes:
            after = [*now[:d], axes[:-1], *now[d + 1 :]]
            return Step("all_gather", (axes[-1],), d, -1, "", tuple(after), held)
    raise AssertionError(f"no step from {now} to {target}")  # pragma: no cover
