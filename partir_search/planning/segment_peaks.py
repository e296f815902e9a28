"""Prediction of peaks and seconds of a plan with any segments of the forward pass recomputed.

Two programs are simulated under the same decisions: one with no and one with all segments
recomputed. The difference of live bytes before the windows of two adjacent segments is the number
of bytes freed by the recomputation of one segment; a step with some segments recomputed is composed
of rows of both curves. A rewrite and an analysis per choice of segments cost a hundred times more.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from partir_search.ir.core import Module, Op
from partir_search.passes.remat import AGAIN, Range, Window, find_windows, forward_length
from partir_search.plan.planned import Planned
from partir_search.simulator.arrays import Floats
from partir_search.simulator.schedule import ScheduledRegion
from partir_search.simulator.simulator import Simulation


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class SegmentPeaks:
    """Live bytes and seconds of recomputation per segment, under fixed decisions.

    Windows are in the order of the backward pass: the last segment comes first.

    Attributes:
      windows: windows of the segments.
      freed: [windows] bytes freed by recomputation of the segment until the window begins.
      seconds: [windows] seconds of one recomputation.
      stored / recomputed: [windows] most live bytes within the window, with no and with all
        segments recomputed.
      outside: [windows + 1] most live bytes before the first window from the end of the forward
        pass, between windows and after the last, with no segment recomputed.
      forward: [windows] most live bytes from a segment's first op to the next segment's, with no
        segment recomputed.
      shared: correction in bytes per segment without recomputation; negative if adjacent segments
        store a value between both once.
    """

    windows: Sequence[Window]
    freed: Sequence[float]
    seconds: Sequence[float]
    stored: Sequence[float]
    recomputed: Sequence[float]
    outside: Sequence[float]
    forward: Sequence[float]
    shared: float = 0.0

    def corrected(self, segments: Sequence[Range], peak: float) -> SegmentPeaks:
        """Predictions with the peak of a plan with some segments recomputed."""
        left = len(self.windows) - len(segments)
        shared = self.shared + (peak - self.peak(segments)) / max(left, 1)
        return dataclasses.replace(self, shared=shared)

    def peak(self, segments: Sequence[Range]) -> float:
        """Predicted peak bytes of a device with some segments recomputed."""
        chosen = set(segments)
        is_chosen = [w.segment in chosen for w in self.windows]
        freed = [f if c else 0.0 for f, c in zip(self.freed, is_chosen, strict=True)]
        pending, left = sum(freed), sum(self.freed) - sum(freed)
        peak = self.outside[0] - pending
        for i, again in enumerate(is_chosen):
            peak = max(peak, self.forward[i] - (pending - freed[i]))
            left -= 0.0 if again else self.freed[i]
            pending -= freed[i]
            within = self.recomputed[i] + left if again else self.stored[i] - pending
            peak = max(peak, within, self.outside[i + 1] - pending)
        return peak + self.shared * (len(self.windows) - len(chosen))

    def saved(self, segments: Sequence[Range]) -> float:
        """Seconds saved by recomputation of the given segments alone."""
        chosen = set(segments)
        pairs = zip(self.windows, self.seconds, strict=True)
        return sum(spent for w, spent in pairs if w.segment not in chosen)

    def fewest(self, limit: float, kinds: Mapping[Range, Hashable]) -> tuple[Range, ...]:
        """Segments with a predicted peak within a limit, and few seconds; all if none suffice.

        Kinds with the most bytes freed per second come first. Needless segments are left out after,
        most seconds first: the last layer's, say, with a window at the peak.

        Args:
          limit: bytes per device.
          kinds: kind of each segment; segments of one kind are measured together.
        """
        freed, seconds = dict[Hashable, float](), dict[Hashable, float]()
        for window, some_bytes, spent in zip(self.windows, self.freed, self.seconds, strict=True):
            kind = kinds[window.segment]
            freed[kind] = freed.get(kind, 0.0) + some_bytes
            seconds[kind] = seconds.get(kind, 0.0) + spent
        worth = {k: freed[k] / max(seconds[k], 1e-30) for k in freed}
        ranked = sorted((w.segment for w in self.windows), key=lambda s: (-worth[kinds[s]], s))
        counts = range(len(ranked))
        least = bisect.bisect_left(counts, True, key=lambda n: self.peak(ranked[:n]) <= limit)
        chosen = ranked[:least]
        cost = {w.segment: spent for w, spent in zip(self.windows, self.seconds, strict=True)}
        for segment in sorted(chosen, key=lambda s: (-cost[s], -s[0])):
            fewer = [s for s in chosen if s != segment]
            if self.peak(fewer) <= limit:
                chosen = fewer
        return tuple(sorted(chosen))


def predict_segments(
    module: Module, segments: Sequence[Range], without: Planned, full: Planned
) -> SegmentPeaks | None:
    """Predicts peaks from plans of the same decisions.

    Args:
      module: the program without recomputation.
      segments: all segments, in program order.
      without: the plan with no segment recomputed.
      full: the plan with all segments recomputed.

    Returns:
      None for segments without windows (scans).
    """
    windows = find_windows(module, segments)
    repeated = [i for i, op in enumerate(full.graph.module.body.ops) if _recomputes(op)]
    if not windows or len(windows) != len(repeated):
        return None
    plain = without.model.simulate(without.sketch)
    again = full.model.simulate(full.sketch)
    before, after = _seconds_before(without, plain), _seconds_before(full, again)
    n, ops = forward_length(module), module.body.ops
    backward = sorted(windows, key=lambda w: w.first)

    def most(begin: int, stop: int) -> float:
        return float(np.max(plain.live[begin:stop], initial=0.0))

    over = [
        max(0.0, float(plain.live[w.first - 1] - again.live[max(at - 1, 0)]))
        for w, at in zip(backward, repeated, strict=True)
    ]
    spent = [
        max(0.0, after[at + 1] - after[at] - (before[w.last + 1] - before[w.first]))
        for w, at in zip(backward, repeated, strict=True)
    ]
    total = max(0.0, again.cost.seconds - plain.cost.seconds)
    scale = total / max(sum(spent), 1e-30)  # kernels across the ends of windows are counted twice
    ends = [n, *(w.last + 1 for w in backward)]
    starts = [*(w.first for w in backward), len(ops)]
    begins = [w.segment[0] for w in backward]
    return SegmentPeaks(
        windows=backward,
        freed=[max(0.0, a - b) for a, b in zip(over, [*over[1:], 0.0], strict=True)],
        seconds=[each * scale for each in spent],
        stored=[most(w.first, w.last + 1) for w in backward],
        recomputed=[float(again.live[at]) for at in repeated],
        outside=[most(a, b) for a, b in zip(ends, starts, strict=True)],
        forward=[most(a, b) for a, b in zip(begins, [n, *begins[:-1]], strict=True)],
    )


def _recomputes(op: Op) -> bool:
    """True for an op made by `rematerialize` for a window."""
    return any(
        r.name.endswith(AGAIN)
        for region in op.regions[:1]
        for o in region.ops[:1]
        for r in o.results
    )


def _seconds_before(planned: Planned, found: Simulation) -> Floats:
    """[ops + 1] seconds of kernels and reshards before each op of a module's body, and in total."""
    module, kernels = planned.graph.module, planned.model.time.kernels
    seconds = np.bincount(kernels.op, found.load.roofline.seconds, len(module.ops))

    def add(scheduled: ScheduledRegion, times: float) -> None:
        for number, (item, _, cost, _) in enumerate(scheduled.steps):
            if cost is not None and item.op is not None:
                seconds[item.op.id] += times * cost.seconds
            for part, trips in scheduled.inner.get(number, ()):
                if part is not None:
                    add(part, times * trips)

    add(found.scheduled, 1.0)
    firsts = [*(op.id for op in module.body.ops), len(module.ops)]  # ids of inner ops come after
    return np.concatenate(([0.0], np.cumsum(seconds)))[firsts]
