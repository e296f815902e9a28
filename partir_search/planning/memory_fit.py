"""Reduction of peak memory by rematerialization.

Rematerialization is tried before a plan is refused: a plan with all segments of the forward pass
recomputed is searched, then reduced to the fewest segments within the limit.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from partir_search.ir.core import Module, Op
from partir_search.mcts.goals import Goal, Spare
from partir_search.passes.remat import Range, find_scans, namesake, rematerialize
from partir_search.passes.remat_copies import STACKED
from partir_search.plan.planned import Planned, with_search
from partir_search.planning.segment_peaks import SegmentPeaks, predict_segments
from partir_search.propagation.actions import Action
from partir_search.simulator.cost import Cost

PROBES = 5  # plans made to find the fewest segments, at most
SMALL_RESULTS = 0.002  # of a peak beyond the margin for fragmentation, for stored results
MIN_GAIN = 0.003  # of a step's seconds, predicted for a further plan with fewer segments


Replay = Callable[[Module, Sequence[Action]], tuple[Planned, bool]]
"""Function (module, actions) applying the legal actions to a program.

Returns the plan, and True if all actions are legal.
"""

Search = Callable[[Module, Sequence[Action], Sequence[Goal[Cost]]], Planned]
"""Function (module, hints, goals) from a program, further starting actions and goals to a plan."""


Correct = Callable[[Module, Sequence[Action], Planned, Planned], Planned | None]


@dataclasses.dataclass(frozen=True, slots=True)
class FormPlanner:
    """Functions that plan rewritten forms of a program.

    Attributes:
      plan: search.
      replay: application of actions.
      objective: the quantity minimised by the goals.
      known: function from a form to the plan of the best known strategy, with decisions for any
        segments; None without. Exact steps also decide on recomputed values, by name.
      correct: function (module, actions, plan of another form, plan by the actions) to a better
        plan with the tiles of the other form, or None; None without.
    """

    plan: Search
    replay: Replay
    objective: Callable[[Cost], float]
    known: Callable[[Module], Planned] | None = None
    correct: Correct | None = None

    def like(self, module: Module, other: Planned) -> tuple[Planned, bool]:
        """The plan of a form with the decisions of a plan of another, and True if all hold."""
        actions = renamed_for(module, other.actions)
        played, holds = self.replay(module, actions)
        better = self.correct(module, actions, other, played) if self.correct else None
        return (better, True) if better else (played, holds)

    def played(self, module: Module, actions: Sequence[Action]) -> tuple[Planned, bool]:
        """Applies actions to a form with different segments recomputed than the actions' own."""
        return self.replay(module, renamed_for(module, actions))


def renamed_for(module: Module, actions: Sequence[Action]) -> list[Action]:
    """Actions with values renamed to a program's values of different segments recomputed.

    Actions on values stacked for other iterations to run again are left out.
    """
    known = module.value_names()
    name_of = functools.cache(lambda name: namesake(name, known))  # barriers repeat names

    def absent(name: str) -> bool:
        return name.endswith(STACKED) and name not in known

    renamed = (a.renamed(name_of) for a in actions)
    return [a for a in renamed if not a.values or not all(map(absent, a.values))]


def fit_by_remat(
    module: Module,
    recomputed: Module,
    segments: Sequence[Range],
    planned: Planned,
    limit: float,
    forms: FormPlanner,
) -> tuple[Planned, tuple[Range, ...]]:
    """Fits a plan into memory by recomputing segments of the forward pass.

    The search runs with all segments recomputed. A search with fewer segments gives no better
    plans: programs with layers partly recomputed fold badly.

    Args:
      module: the program without recomputation.
      recomputed: the program with all segments recomputed.
      segments: all segments, in program order.
      planned: a plan over the limit, of the program without recomputation.
      limit: bytes per device.
      forms: plans the program with segments recomputed.

    Returns:
      The plan with the fewest recomputed segments within the limit, or the plan with the lowest
        peak if none fits; and its segments.
    """
    played, objective, known = forms.played, forms.objective, forms.known
    target_bytes = limit * (1.0 - planned.model.machine.traits.memory_fragmentation_fraction)
    replayed, holds = played(recomputed, planned.actions)
    if holds and replayed.cost.peak_bytes >= planned.cost.peak_bytes:
        return planned, ()  # the peak is elsewhere: recomputation frees nothing
    costs = planned.cost, replayed.cost
    if known is not None and not holds:
        # Decisions on recomputed values do not hold: their cost says nothing of recomputation.
        start = known(recomputed)
        costs = played(module, start.actions)[0].cost, start.cost
    spare = _worth(*costs, target_bytes, objective)
    full = forms.plan(recomputed, planned.actions, spare)
    if planned.cost.peak_bytes <= full.cost.peak_bytes:
        return planned, ()
    if full.cost.peak_bytes > limit:
        return full, tuple(segments)
    target_bytes = max(target_bytes, (1.0 + SMALL_RESULTS) * full.cost.peak_bytes)

    def reduced(start: Planned) -> tuple[Planned, tuple[Range, ...], float | None]:
        """Decisions of a plan that fits, with the fewest segments, and the peak without any."""

        def with_some(some: Sequence[Range]) -> Planned:
            return forms.like(rematerialize(module, some) if some else module, start)[0]

        without, holds = forms.like(module, start)
        peak = without.cost.peak_bytes
        if not holds:
            return start, tuple(segments), None  # decisions on recomputed values do not hold
        fits = peak <= target_bytes
        if fits and not find_scans(module, segments):
            return without, (), peak
        kinds = kinds_of(module, segments)
        found, some = start, tuple(segments)
        if peaks := predict_segments(module, segments, kinds, without, start):
            found, some = _fewest(with_some, start, peaks, kinds, target_bytes, objective)
        if fits and objective(without.cost) <= objective(found.cost):
            return without, (), peak
        return found, some, peak

    best, chosen, peak = reduced(full)
    if best is full and known is not None:
        start = known(recomputed)
        if start.cost.peak_bytes <= target_bytes:
            other = reduced(start)
            if objective(other[0].cost) < objective(best.cost):
                best, chosen, peak = other
    if best is not full:  # the search proved nothing about fewer segments
        reports = tuple(
            dataclasses.replace(r, proven=False, lower_bound=None) for r in full.reports
        )
        best = with_search(best, full, reports)
    if chosen:
        best = dataclasses.replace(best, peak_without_remat=peak)
    return best, chosen


def _worth(
    without: Cost, with_all: Cost, limit: float, objective: Callable[[Cost], float]
) -> list[Goal[Cost]]:
    """Goals that price memory in a plan with all segments recomputed.

    Such a plan has memory to spare, as fewer segments will be recomputed in the end.

    Args:
      without, with_all: costs of the same decisions with no and with all segments recomputed.
      limit: bytes per device.
      objective: the quantity minimised by the goals.
    """
    freed = without.peak_bytes - with_all.peak_bytes
    spent = objective(with_all) - objective(without)
    return [Spare(limit, spent / freed, spent)] if freed > 0 and spent > 0 else []


def kinds_of(module: Module, segments: Sequence[Range]) -> dict[Range, tuple[str, ...]]:
    """Kind of each segment: segments with the same ops are of one kind."""
    ops = module.body.ops
    return {s: tuple(_kinds(ops[slice(*s[:2])])) for s in segments}


def _kinds(ops: Sequence[Op]) -> Iterator[str]:
    """Primitives of some ops and of all ops inside."""
    for op in ops:
        yield op.prim
        for region in op.regions:
            yield from _kinds(region.ops)


def _fewest(
    plan_with: Callable[[Sequence[Range]], Planned],
    full: Planned,
    peaks: SegmentPeaks,
    kinds: Mapping[Range, Hashable],
    limit: float,
    objective: Callable[[Cost], float],
) -> tuple[Planned, tuple[Range, ...]]:
    """Finds the fewest segments whose recomputation fits, by predicted peaks.

    Segments run again in part or, if no such plan is better, as a whole alone. The peak of each
    plan made corrects the predictions for the next choice.

    Args:
      plan_with: function from segments to a plan.
      full: the plan with all segments, which fits.
      peaks: predictions.
      kinds: kind of each segment.
      limit: bytes per device.
      objective: the quantity to minimise.

    Returns:
      The plan and its segments.
    """
    segments = tuple(kinds)
    best, chosen, tried = full, segments, {segments}
    predicted_limit = limit - (full.cost.peak_bytes - peaks.peak(segments))
    for predicted in (peaks, peaks.whole()):
        while len(tried) <= PROBES:
            some = predicted.fewest(predicted_limit, kinds)
            gain = peaks.spent(chosen) - peaks.spent(some)
            if some in tried or gain < MIN_GAIN * full.cost.seconds:
                break
            tried.add(some)
            planned = plan_with(some)
            if objective(planned.cost) > objective(full.cost):
                break  # kernels bound by memory run no faster in part
            peak = planned.cost.peak_bytes
            predicted = predicted.corrected(some, peak + predicted_limit - limit)
            if peak <= limit and objective(planned.cost) <= objective(best.cost):
                best, chosen = planned, some
        if best is not full:
            break
    return best, chosen
