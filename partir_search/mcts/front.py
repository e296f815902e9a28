"""Pareto fronts of two figures to minimize, and a few points spread over a front."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")
Figures = Callable[[T], tuple[float, float]]


def nondominated(items: Iterable[T], figures: Figures[T]) -> list[T]:
    """Items without a further item at most as large in both figures, in order of the first figure.

    Of items with equal figures, the first is kept.

    Args:
      figures: both figures of an item.
    """
    kept: list[T] = []
    least = math.inf
    for item in sorted(items, key=figures):
        if figures(item)[1] < least:
            kept.append(item)
            least = figures(item)[1]
    return kept


def spread(
    front: Sequence[T],
    figures: Figures[T],
    count: int,
    least_gain: float = 0.0,
    keep: Sequence[T] = (),
) -> list[T]:
    """At most `count` points of a front: both ends, then always the point of the largest gain.

    For a limit on the second figure between two chosen points, the slower of the two is the best
    choice. The gain of a point between is the part of the limits (a difference of logs) for which
    the point is chosen instead, times the log of the speed-up.

    Args:
      front: nondominated items in order of the first figure; figures are positive.
      figures: both figures of an item.
      count: most points, at least 2.
      least_gain: of a point beside the ends.
      keep: points of the front chosen in any case.
    """
    logs = [tuple(math.log(max(x, 1e-300)) for x in figures(item)) for item in front]
    kept = {front.index(item) for item in keep}
    chosen = sorted(kept | {0, len(front) - 1}) if front else []
    while len(chosen) < count:
        gains = {
            at: (logs[a][1] - logs[at][1]) * (logs[b][0] - logs[at][0])
            for a, b in itertools.pairwise(chosen)
            for at in range(a + 1, b)
        }
        best = max(gains, key=lambda at: gains[at], default=None)
        if best is None or gains[best] <= least_gain:
            break
        chosen = sorted([*chosen, best])
    return [front[at] for at in chosen]
