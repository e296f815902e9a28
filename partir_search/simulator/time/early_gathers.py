"""Asynchronous gathers beside the compute of a region, with the layers of folded ops.

Seconds of compute that hide no gather yet are the slack. A gather of s seconds that may start r
seconds of compute before its use hides min(s, r, slack) seconds, and the slack falls by as many.
Ops that stand for those of n layers run in the order of the original
(`passes/fold/run_order.py`): in the first layer the slack is what precedes the layers, in all
others what the layer before leaves. Gathers and compute of one layer change the slack from x to
max(x + a, b) with constants a and b. The slack before the gathers of layer j is therefore a clipped
arithmetic series, and sums over all layers have a closed form.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

from partir_search.ir.rule import NONE
from partir_search.passes.fold.run_order import RunOrder
from partir_search.simulator.time.compute_between import Run, Sums, ends_of, runs_of, since_made

ROUNDING = 1e-9  # of a gather's seconds


@dataclasses.dataclass(slots=True)
class EarlyGather:
    """A gather, on average over all runs.

    Attributes:
      seconds: duration.
      early: seconds of compute that were free when the gather could start.
      hidden: seconds behind compute.
      left: seconds of compute per gather that hide no gather at the end of the layers.
    """

    seconds: float
    early: float = 0.0
    hidden: float = 0.0
    left: float = 0.0

    @property
    def exposed(self) -> float:
        """Seconds that no compute hides."""
        left = self.seconds - self.hidden
        return left if left > ROUNDING * self.seconds else 0.0


@dataclasses.dataclass(slots=True)
class _Begun:
    """A gather in one stretch.

    Attributes:
      first / later: seconds of compute since the source was made, in the first and later layers.
      share: gathers per layer.
      runs: share of the layers in all runs of the gather.
    """

    gather: EarlyGather
    run: Run
    first: float
    later: float
    share: float
    runs: float


@dataclasses.dataclass(slots=True)
class _Waiting:
    """A gather of a stretch: the slack before it is max(x + offset, least) if x before the layer.

    Attributes:
      taken: seconds hidden at most in one layer.
    """

    begun: _Begun
    offset: float
    least: float
    taken: float


class EarlyGathers:
    """Gathers of one region in one run of the region."""

    def __init__(self, beside: Sequence[float], order: RunOrder) -> None:
        """No gathers.

        Args:
          beside: [ops + 1] seconds of compute before each op of the region, of one run of each.
        """
        self._order, self._sums = order, Sums.of(beside, order)
        self._begun: list[_Begun] = []

    def begin(
        self, at: int, user: int, seconds: float, made: int | None = None, repeats: float = 1.0
    ) -> EarlyGather:
        """Begins a gather before its use; the result is complete after `end`.

        Args:
          at: position up to which compute precedes the gather; of gathers before the same op, in
            the order of the calls.
          user: position of the op that reads the gather; NONE for results of the region.
          seconds: duration.
          made: position of the op that makes the source; NONE for a gather that starts at its use,
            None for one that starts at any time.
          repeats: gathers in one run of the region.
        """
        found, order = EarlyGather(seconds), self._order
        runs = list(runs_of(order, at, user))
        times = sum(run.layers for run in runs)
        share = max(repeats / times, ROUNDING)
        since = (math.inf, math.inf) if made is None else (0.0, 0.0)
        for run in runs:
            if made is not None and made != NONE:
                since = since_made(order, self._sums, made, run, user)
            self._begun.append(_Begun(found, run, *since, share, run.layers / times))
        return found

    def end(self) -> None:
        """Computes the seconds of all gathers."""
        one, every = self._sums.one, self._sums.all_layers
        begun = sorted(self._begun, key=lambda each: (each.run.stretch, each.run.at))
        slack, seen = 0.0, 0  # the latter: an entry where a stretch begins
        for _, group in itertools.groupby(begun, key=lambda each: each.run.stretch):
            found = list(group)
            begin, end = ends_of(self._order, found[0].run)
            slack += every[begin] - every[seen]
            seen, layers = end, found[0].run.layers
            if layers == 1:
                slack = _one_layer(found, one, begin, end, slack)
            else:
                slack = _layers(found, one, begin, end, layers, slack)


def _one_layer(
    begun: Sequence[_Begun], one: Sequence[float], begin: int, end: int, slack: float
) -> float:
    """Gathers of a stretch of one layer; returns the slack after the stretch."""
    for each in begun:
        slack += one[each.run.at] - one[begin]
        begin = each.run.at
        slack -= _take(each, slack, each.runs / each.run.layers)
        each.gather.left += each.runs * min(slack / each.share, each.first)
    return slack + one[end] - one[begin]


def _take(each: _Begun, slack: float, runs: float) -> float:
    """Seconds of the slack that a gather hides in the first layer of a stretch.

    Args:
      runs: share of the layer in all runs of the gather.
    """
    gather = each.gather
    taken = min(slack, min(gather.seconds, each.first) * each.share)
    gather.early += runs * min(slack / each.share, each.first)
    gather.hidden += runs * taken / each.share
    return taken


def _layers(
    begun: Sequence[_Begun],
    one: Sequence[float],
    begin: int,
    end: int,
    layers: int,
    slack: float,
) -> float:
    """Gathers of a stretch of several layers; returns the slack after the stretch."""
    offset = least = 0.0  # of one layer so far
    waiting: list[_Waiting] = []
    for each in begun:
        work = one[each.run.at] - one[begin]
        begin = each.run.at
        slack, offset, least = slack + work, offset + work, least + work
        slack -= _take(each, slack, each.runs / layers)
        most = min(each.gather.seconds, each.later) * each.share
        waiting.append(_Waiting(each, offset, least, most))
        offset -= most
        least = max(0.0, least - most)
    work = one[end] - one[begin]
    slack, step, least = slack + work, offset + work, least + work
    later = layers - 1
    for wait in waiting:
        each, gather = wait.begun, wait.begun.gather
        start, low = slack + wait.offset, max(least + wait.offset, wait.least)
        runs = each.runs / layers / each.share
        gather.hidden += runs * clipped_sum(start, step, low, wait.taken, later)
        gather.early += runs * clipped_sum(start, step, low, each.later * each.share, later)
    slack = max(slack + later * step, least + (later - 1) * max(step, 0.0))
    for wait in waiting:
        wait.begun.gather.left += wait.begun.runs * slack / (wait.begun.share * layers)
    return slack


def clipped_sum(start: float, step: float, low: float, high: float, count: int) -> float:
    """Sum of min(high, max(low, start + j step)) over j from 0 to `count`, exclusive."""
    if step < 0.0:
        start, step = start + (count - 1) * step, -step
    if low >= high or start >= high:
        return high * count
    last = start + (count - 1) * step
    if last <= low:
        return low * count
    if step * count <= 1e-12 * max(abs(start), abs(last)):
        return min(max(start, low), high) * count
    below = max(0, math.ceil((low - start) / step)) if start < low else 0
    inside = count if last <= high else min(count, math.ceil((high - start) / step))
    middle = inside - below
    rising = middle * start + step * (below + inside - 1) * middle / 2.0
    return low * below + rising + (high * (count - inside) if inside < count else 0.0)
