"""Recomputation in fewer seconds: residuals of scans slower to move than to compute.

A scan stacks the residuals of each iteration in main memory, and the backward scan reads stacks.
A fused kernel often computes residuals again in fewer seconds, from stored results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from partir_search.ir.core import Module
from partir_search.passes.remat import Range, find_scans, rematerialize
from partir_search.plan.planned import Planned, with_search
from partir_search.planning.memory_fit import MIN_GAIN, FormPlanner, kinds_of
from partir_search.planning.segment_peaks import predict_segments

TRIED = 3  # choices of stored results costed on the program


def recompute_residuals(
    module: Module,
    recomputed: Module,
    segments: Sequence[Range],
    planned: Planned,
    limit: float,
    forms: FormPlanner,
) -> tuple[Planned, tuple[Range, ...]]:
    """Recomputes residuals of scans if a plan's objective falls.

    The program with all iterations recomputed is searched only if a known strategy gains.

    Args:
      module: the program without recomputation.
      recomputed: the program with all segments recomputed.
      segments: all segments, in program order.
      planned: a plan within the limit, of the program without recomputation.
      limit: bytes per device.
      forms: plans the program with segments recomputed.

    Returns:
      The plan with the least objective, and the segments.
    """
    objective = forms.objective
    if forms.known is None or not find_scans(module, segments):
        return planned, ()
    kinds = kinds_of(module, segments)

    def costed(full: Planned) -> tuple[Planned, list[tuple[Planned, tuple[Range, ...]]]]:
        """Decisions without recomputation, and with the forms predicted to save the most."""
        without, holds = forms.played(module, full.actions)
        peaks = predict_segments(module, segments, kinds, without, full) if holds else None
        some = peaks.fastest(TRIED) if peaks else []
        faster = [each for each in some if peaks and peaks.spent(each) < -least]
        rewritten = (rematerialize(module, each) for each in faster)
        plans = [forms.played(form, full.actions)[0] for form in rewritten]
        return without, [*zip(plans, faster, strict=True)]

    least = MIN_GAIN * planned.cost.seconds
    without, tried = costed(forms.known(recomputed))
    if not any(objective(each.cost) < objective(without.cost) - least for each, _ in tried):
        return planned, ()
    tried += costed(forms.plan(recomputed, planned.actions, ()))[1]
    best, chosen = planned, tuple[Range, ...]()
    for found, some in tried:
        fits = found.cost.peak_bytes <= limit
        if fits and objective(found.cost) < objective(best.cost):
            best, chosen = found, some
    return best, chosen


def beside_plain(found: Planned, planned: Planned) -> Planned:
    """A plan with residuals recomputed, with the reports of the search without recomputation.

    Args:
      planned: the plan of the search.
    """
    reports = [dataclasses.replace(r, proven=False, plain=True) for r in planned.reports]
    found = with_search(found, planned, reports)
    return dataclasses.replace(found, peak_without_remat=planned.cost.peak_bytes)
