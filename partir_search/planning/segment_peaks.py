"""Prediction of peaks and seconds of a plan with any segments of the forward pass recomputed.

The effects of single segments (`segment_effects`) are added up. A segment runs again as a whole or,
with results of some ops stored, in part: values stored are those that save the most seconds per
byte. A rewrite and an analysis per choice of segments cost a hundred times more.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from partir_search.ir.core import Module, Op
from partir_search.passes.remat import Range, find_scans, find_windows
from partir_search.passes.remat_copies import AGAIN
from partir_search.plan.planned import Planned
from partir_search.planning.scan_effects import ScanEffects
from partir_search.planning.segment_effects import Effect, SegmentEffects
from partir_search.simulator.arrays import Floats

HEAVY = 0.01  # of the seconds of a segment's recomputation, for an op whose results may be stored
MOST_HEAVY = 16  # ops of a segment whose results may be stored


Effects = SegmentEffects | ScanEffects


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class SegmentPeaks:
    """Live bytes and seconds with segments recomputed, under fixed decisions.

    Attributes:
      live: [positions] live bytes with no segment recomputed.
      forms: forms of each segment: the segment recomputed as a whole, last, and with results of
        some ops stored, each form with fewer bytes per second saved than the form before.
      effects: function from a form to the effect.
      scale: seconds over the sums of the effects' seconds.
      error: bytes to add to the sums of effects.
    """

    live: Floats
    forms: Mapping[Range, Sequence[Range]]
    effects: Callable[[Range], Effect | None]
    scale: float = 1.0
    error: float = 0.0

    def corrected(self, segments: Sequence[Range], peak: float) -> SegmentPeaks:
        """Predictions with the peak of a plan with some segments recomputed."""
        return dataclasses.replace(self, error=self.error + peak - self.peak(segments))

    def whole(self) -> SegmentPeaks:
        """Predictions of segments recomputed as a whole alone."""
        return dataclasses.replace(self, forms={s: forms[-1:] for s, forms in self.forms.items()})

    def peak(self, segments: Sequence[Range]) -> float:
        """Predicted peak bytes of a device with some segments recomputed."""
        freed = np.zeros(len(self.live) + 1)
        for effect in filter(None, map(self.effects, segments)):
            np.add.at(freed, effect.positions, effect.freed)
        return float(np.max(self.live - np.cumsum(freed)[:-1], initial=0.0)) + self.error

    def spent(self, segments: Sequence[Range]) -> float:
        """Seconds of the recomputation of some segments."""
        return self.scale * sum(e.seconds for e in map(self.effects, segments) if e is not None)

    def fastest(self, count: int) -> list[tuple[Range, ...]]:
        """At most `count` choices of segments whose recomputation saves seconds, the most first.

        In choice number i each segment has the form with the i-th most seconds saved.
        """
        saving = dict[Range, list[Range]]()
        for segment, forms in self.forms.items():
            seconds = {form: self.spent([form]) for form in forms}
            faster = (form for form in forms if seconds[form] < 0.0)
            saving[segment] = sorted(faster, key=seconds.__getitem__)
        most = max(map(len, saving.values()), default=0)
        return [
            tuple(sorted(forms[min(i, len(forms) - 1)] for forms in saving.values() if forms))
            for i in range(min(most, count))
        ]

    def fewest(self, limit: float, kinds: Mapping[Range, Hashable]) -> tuple[Range, ...]:
        """Segments with a predicted peak within a limit, and few seconds; all if none suffice.

        Forms in fewer seconds come first, within any limit. Forms with the most bytes freed per
        second follow, of all segments of a kind. Needless forms are left out after, most seconds
        first: the last layer's, say, with a window at the peak.

        Args:
          limit: bytes per device.
          kinds: kind of each segment; segments of one kind are measured together.
        """
        steps = self._steps(kinds)

        def chosen(count: int) -> dict[Range, int]:
            found = dict[Range, int]()
            for segment, form in steps[:count]:
                found[segment] = form
            return found

        def forms(found: Mapping[Range, int]) -> list[Range]:
            return [self.forms[s][form] for s, form in found.items()]

        saving = sum(self._more(segment, form)[1] < 0.0 for segment, form in steps)
        counts = range(saving, len(steps))
        least = bisect.bisect_left(counts, True, key=lambda n: self.peak(forms(chosen(n))) <= limit)
        found = chosen(saving + least)
        for segment in sorted(found, key=lambda s: (-self._saved_by_less(s, found[s]), -s[0])):
            if self._saved_by_less(segment, found[segment]) <= 0.0:
                break
            fewer = dict(found)
            fewer[segment] -= 1
            if fewer[segment] < 0:
                del fewer[segment]
            if self.peak(forms(fewer)) <= limit:
                found = fewer
        return tuple(sorted(forms(found)))

    def _steps(self, kinds: Mapping[Range, Hashable]) -> list[tuple[Range, int]]:
        """Segments with the next form each, in the order of bytes freed per second."""
        freed = dict[tuple[Hashable, int], float]()
        seconds = dict[tuple[Hashable, int], float]()
        for segment, forms in self.forms.items():
            for number in range(len(forms)):
                more, spent = self._more(segment, number)
                key = kinds[segment], number
                freed[key] = freed.get(key, 0.0) + more
                seconds[key] = seconds.get(key, 0.0) + spent
        worth = {key: freed[key] / max(seconds[key], 1e-30) for key in freed}
        for kind, number in worth:  # in order of the numbers
            if number:
                worth[kind, number] = min(worth[kind, number], worth[kind, number - 1])
        steps = [(s, number) for s, forms in self.forms.items() for number in range(len(forms))]
        return sorted(steps, key=lambda step: (-worth[kinds[step[0]], step[1]], step[1], step[0]))

    def _more(self, segment: Range, number: int) -> tuple[float, float]:
        """Bytes freed and seconds of a form beyond those of the form before."""
        forms = self.forms[segment]
        here, before = self.effects(forms[number]), self.effects(forms[number - 1])
        freed, seconds = (here.nbytes, here.seconds) if here else (0.0, 0.0)
        if number and before:
            freed, seconds = freed - before.nbytes, seconds - before.seconds
        return freed, seconds

    def _saved_by_less(self, segment: Range, number: int) -> float:
        return self._more(segment, number)[1]


def predict_segments(
    module: Module,
    segments: Sequence[Range],
    kinds: Mapping[Range, Hashable],
    without: Planned,
    full: Planned,
) -> SegmentPeaks | None:
    """Predicts peaks from plans of the same decisions.

    Args:
      module: the program without recomputation.
      segments: all segments, in program order.
      kinds: kind of each segment; segments of one kind have the same forms.
      without: the plan with no segment recomputed.
      full: the plan with all segments recomputed.

    Returns:
      None if segments of the plan with all are unlike those of the program.
    """
    plain = without.model.simulate(without.sketch)
    effects: Effects
    if find_scans(module, segments):
        effects, found = ScanEffects(module, segments, without, full), list(segments)
    else:
        windows = sorted(find_windows(module, segments), key=lambda w: w.first)
        repeated = [i for i, op in enumerate(full.graph.module.body.ops) if _recomputes(op)]
        if len(windows) != len(repeated):
            return None
        effects, found = SegmentEffects(module, without, plain), sorted(w.segment for w in windows)
        effects.correct(windows, repeated, full.model.simulate(full.sketch).live)
    found = [s for s in found if effects(s) is not None]
    if not found:
        return None
    stored = dict[Hashable, list[tuple[int, ...]]]()
    for kind in dict.fromkeys(kinds[s] for s in found):
        alike = [s for s in found if kinds[s] == kind]
        stored[kind] = _stored_offsets(alike[len(alike) // 2], effects)
    forms = {s: [effects.form(s, each) for each in stored[kinds[s]]] for s in found}
    peaks = SegmentPeaks(plain.live, forms, effects)
    total, spent = full.cost.seconds - plain.cost.seconds, peaks.spent(found)
    if total * spent > 0.0:
        peaks = dataclasses.replace(peaks, scale=total / spent)
    return peaks


def _recomputes(op: Op) -> bool:
    """True for an op made by `rematerialize` for a window."""
    return any(
        r.name.endswith(AGAIN)
        for region in op.regions[:1]
        for o in region.ops[:1]
        for r in o.results
    )


def _stored_offsets(segment: Range, effects: Effects) -> list[tuple[int, ...]]:
    """Offsets of ops with stored results, for each form of a segment, () last.

    From the whole segment, the op that saves the most seconds per byte stored is stored next. Forms
    off the lower convex hull of seconds over bytes freed are left out.
    """
    whole = effects(segment)
    assert whole is not None
    again = effects.seconds_again(segment)
    heavy = [at for at, seconds in again.items() if seconds > HEAVY * whole.seconds]
    heavy = sorted(heavy, key=lambda at: -again[at])[:MOST_HEAVY]
    points: list[Point] = [(whole.nbytes, whole.seconds, ())]
    while heavy:
        freed, seconds, stored = points[-1]
        worth = list[tuple[float, int, Point]]()
        for at in heavy:
            with_one = tuple(sorted((*stored, at)))
            effect = effects(effects.form(segment, with_one))
            point = (effect.nbytes, effect.seconds, with_one) if effect else (0.0, 0.0, with_one)
            worth.append(((seconds - point[1]) / max(freed - point[0], 1.0), -at, point))
        _, best, point = max(worth)
        heavy.remove(-best)
        points.append(point)
    return [stored for _, _, stored in _hull(points)]


Point = tuple[float, float, tuple[int, ...]]
"""Bytes freed, seconds, and offsets of the ops with stored results."""


def _hull(points: Sequence[Point]) -> list[Point]:
    """Points on the lower convex hull of seconds over bytes from (0, 0), in the order of bytes.

    The point of the most bytes is the last. Of equal points, the one with the fewest stored results
    is on the hull.
    """
    hull: list[Point] = [(0.0, 0.0, ())]
    most = max(points)
    fewest = {point[:2]: point for point in sorted(points, key=lambda each: -len(each[2]))}
    for point in sorted(fewest.values()):
        if point[0] <= 0.0 and point is not most:
            continue
        while len(hull) > 1 and _slope(hull[-1], point) <= _slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append(point)
    while hull[-1] is not most:
        hull.pop()
    return hull[1:]


def _slope(a: Point, b: Point) -> float:
    return (b[1] - a[1]) / max(b[0] - a[0], 1e-30)
