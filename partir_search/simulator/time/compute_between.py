"""Compute between the op that makes a value and the ops that read the value, in a run order.

Ops of a quotient run in the order of the original (`passes/fold/run_order.py`): a read may be in
the same layer as the maker, in the next layer, or in another stretch.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from partir_search.ir.rule import NONE
from partir_search.passes.fold.run_order import RunOrder


@dataclasses.dataclass(frozen=True, slots=True)
class Sums:
    """Compute before each entry of a run order.

    Attributes:
      one / all_layers: of one layer, and of all layers, of the entries before; floats or arrays.
    """

    one: Any
    all_layers: Any

    @classmethod
    def of(cls, beside: Sequence[float], order: RunOrder) -> Sums:
        """Sums of seconds.

        Args:
          beside: [ops + 1] seconds before each op of the region, of one run of each.
        """
        if order.plain:
            return cls(beside, beside)
        each = np.diff(np.array(beside))[order.ops]
        one = [0.0, *np.cumsum(each).tolist()]
        for stretch in order.stretches:
            if stretch.layers > 1:
                each[stretch.begin : stretch.end] *= stretch.layers
        return cls(one, [0.0, *np.cumsum(each).tolist()])


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """Gathers of a use in one stretch.

    Attributes:
      stretch: number of the stretch; NONE before the first, the number of all after the last.
      at: entry up to which compute of the layer precedes the gather.
      layers: of the stretch.
    """

    stretch: int
    at: int
    layers: int


def runs_of(order: RunOrder, at: int, user: int) -> Iterator[Run]:
    """Runs of the gathers of a use, in order.

    Args:
      at: position up to which compute precedes the gather.
      user: position of the op that reads the gather; NONE for results of the region.
    """
    if user == NONE:
        yield Run(len(order.stretches), len(order.ops), 1) if at else Run(NONE, 0, 1)
        return
    for entry in order.entries[user]:
        number = order.stretch_at(entry)
        yield Run(number, entry + at - user, order.stretches[number].layers)


def ends_of(order: RunOrder, run: Run) -> tuple[int, int]:
    """First entry of a run's stretch, and the entry after the last."""
    if 0 <= run.stretch < len(order.stretches):
        stretch = order.stretches[run.stretch]
        return stretch.begin, stretch.end
    return run.at, run.at


def since_made(order: RunOrder, sums: Sums, made: int, run: Run, user: int) -> tuple[Any, Any]:
    """Compute between the op that makes a value and the op that reads the value.

    Args:
      made: position of the op that makes the value.
      run: of the use.
      user: position of the op that reads the value; NONE for results of the region.

    Returns:
      Compute in the first layer, and the least in a later layer.
    """
    one, all_layers, at = sums.one, sums.all_layers, run.at
    entries = order.entries[made]
    before = bisect.bisect_left(entries, at)
    begin, end = ends_of(order, run)
    here = one[at] - one[begin]  # the layer so far
    if before and entries[before - 1] >= begin:
        found = one[at] - one[entries[before - 1] + 1]
        return found, found
    last = bisect.bisect_left(entries, end)
    wraps = run.layers > 1 and last > before
    if before:
        maker = entries[before - 1]
        of = order.stretches[order.stretch_at(maker)]
        first = one[of.end] - one[maker + 1] + all_layers[begin] - all_layers[of.end] + here
    else:
        of, first = None, here if wraps else one[0] - one[0]
    if run.layers == 1:
        return first, first
    if wraps:  # the layer before makes the value
        return first, here + one[end] - one[entries[last - 1] + 1]
    later = first + one[end] - one[begin]
    if of and of.layers == run.layers and order.backward[user] > order.backward[made]:
        later = later + one[of.end] - one[of.begin]  # last layers are read first
    return first, later


def since_begin(order: RunOrder, sums: Sums, run: Run) -> tuple[Any, Any]:
    """Compute between the begin of a region and the op that reads a value.

    Returns:
      Compute in the first layer, and on average in the later layers.
    """
    begin, end = ends_of(order, run)
    first = sums.all_layers[begin] + sums.one[run.at] - sums.one[begin]
    if run.layers == 1:
        return first, first
    return first, first + (sums.one[end] - sums.one[begin]) * (run.layers / 2.0)


def before_last(order: RunOrder, sums: Sums, run: Run) -> Any:
    """Compute of a region before a run in the last layer of the run's stretch."""
    begin, end = ends_of(order, run)
    here = sums.one[run.at] - sums.one[begin]
    return sums.all_layers[begin] + (run.layers - 1) * (sums.one[end] - sums.one[begin]) + here
