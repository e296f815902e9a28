"""Choices of segments to compute again, by predicted peaks and seconds of toy layers."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from partir_search.passes.remat import Range
from partir_search.planning.memory_fit import PROBES, _fewest
from partir_search.planning.segment_effects import Effect
from partir_search.planning.segment_peaks import SegmentPeaks


def effect(segment: Range, nbytes: float, seconds: float) -> Effect:
    """Bytes freed from two positions after a toy segment to its window."""
    begin, until = segment[0] + 2, END - segment[0]
    return Effect(np.array([begin, until]), np.array([nbytes, -nbytes]), nbytes, seconds)


END = 24  # position of the first segment's window


def layers(heads: Sequence[float], rest: Sequence[float]) -> SegmentPeaks:
    """Four layers of two segments, which free (bytes) and take (seconds) `heads` and `rest`."""
    segments = [(i, i + 1) for i in range(8)]
    effects = {s: effect(s, *(rest if s[0] % 2 else heads)) for s in segments}
    live = np.zeros(END + 1)
    live[12] = 100.0  # between the forward and the backward pass
    return SegmentPeaks(live, {s: [s] for s in segments}, effects.__getitem__)


KINDS = {(i, i + 1): i % 2 for i in range(8)}  # heads are even


@pytest.mark.parametrize("dear", [False, True])
def test_kinds_that_free_most_for_a_second_come_first(dear: bool) -> None:
    """Four heads free 20 bytes; they take 4 s, or 16 s."""
    peaks = layers((5.0, 4.0 if dear else 1.0), (2.0, 1.0))
    assert peaks.peak(()) == 100.0
    chosen = peaks.fewest(92.0, KINDS)
    assert peaks.peak(chosen) <= 92.0
    assert {KINDS[s] for s in chosen} == {int(dear)}
    assert peaks.fewest(peaks.peak(tuple(KINDS)), KINDS) == tuple(KINDS)


def test_segments_are_freed_until_their_windows() -> None:
    """Segments whose windows have begun lie in memory beside those that still wait."""
    peaks = layers((5.0, 1.0), (2.0, 1.0))
    last = (7, 8)
    assert peaks.peak([last]) == 98.0
    assert peaks.peak(tuple(KINDS)) == 72.0
    assert peaks.spent(tuple(KINDS)) == 8.0
    assert peaks.spent([last]) == 1.0
    peaks.live[END - 7] = 100.0  # as the window of the last segment begins
    assert peaks.peak(tuple(KINDS)) == 100.0 - 3 * 2.0 - 4 * 5.0
    corrected = peaks.corrected([last], 112.0)
    assert corrected.peak([last]) == 112.0
    assert corrected.peak(tuple(KINDS)) == peaks.peak(tuple(KINDS)) + 12.0


def test_forms_with_stored_results_come_before_whole_segments() -> None:
    """Heads free 4 of 5 bytes in a tenth of the seconds: the rest runs again before heads do."""
    peaks = layers((5.0, 1.0), (2.0, 0.5))
    parts = {s: (*s, s[0]) for s in KINDS if not KINDS[s]}
    effects = {s: effect(s, 4.0, 0.1) for s in parts.values()}
    effects |= {s: peaks.effects(s) for s in KINDS}
    forms = {s: [parts[s], s] if s in parts else [s] for s in KINDS}
    peaks = dataclasses.replace(peaks, forms=forms, effects=effects.__getitem__)
    assert peaks.fewest(84.0, KINDS) == tuple(parts.values())
    first = peaks.fewest(82.0, KINDS)
    assert sorted(first) == sorted([*parts.values(), (1, 2)])
    rest = [s for s in KINDS if KINDS[s]]
    assert sorted(peaks.fewest(76.0, KINDS)) == sorted([*parts.values(), *rest])
    assert sorted(peaks.fewest(75.0, KINDS)) == sorted([(0, 1), *[*parts.values()][1:], *rest])
    assert sorted(peaks.fewest(0.0, KINDS)) == sorted(KINDS)


@pytest.mark.parametrize("error", [lambda n: 0.0, lambda n: 0.06 * n, lambda n: -3.0 * (n % 7)])
def test_the_fewest_segments_are_found(error: Callable[[int], float]) -> None:
    """Whatever the error of predictions, the plan fits; without one, no plan has fewer."""
    peaks = layers((5.0, 1.0), (2.0, 1.0))

    def at(segments: Sequence[Any]) -> Any:
        tried.append(segments)
        peak, seconds = peaks.peak(segments) + error(len(segments)), 22.0 + peaks.spent(segments)
        cost = types.SimpleNamespace(peak_bytes=peak, seconds=seconds)
        return types.SimpleNamespace(cost=cost)

    for limit in (80.0, 84.0, 90.0, 99.0):
        tried: list[Sequence[Any]] = []
        planned, chosen = _fewest(
            at, at(tuple(KINDS)), peaks, KINDS, limit, lambda cost: cost.seconds
        )
        assert planned.cost.peak_bytes <= limit
        assert len(tried) <= 1 + PROBES
        if not error(1):
            assert len(tried) == 2
            assert chosen == peaks.fewest(limit, KINDS)
            assert min(peaks.peak([s for s in chosen if s != left]) for left in chosen) > limit


def test_one_plan_corrects_the_predictions() -> None:
    """Fewer than all segments take 3 bytes less than predicted: the second plan is exact."""
    peaks, made = layers((5.0, 1.0), (2.0, 1.0)), list[Any]()

    def at(segments: Sequence[Any]) -> Any:
        made.append(tuple(segments))
        peak = peaks.peak(segments) - (0.0 if len(segments) == len(KINDS) else 3.0)
        cost = types.SimpleNamespace(peak_bytes=peak, seconds=22.0 + peaks.spent(segments))
        return types.SimpleNamespace(cost=cost)

    _, chosen = _fewest(at, at(tuple(KINDS)), peaks, KINDS, 84.0, lambda cost: cost.seconds)
    assert chosen == made[-1] == peaks.fewest(87.0, KINDS)
    assert len(made) == 3
