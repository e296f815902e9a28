"""Forms of a program with some segments of the forward pass computed again, for a front."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from partir_search.ir.core import Module
from partir_search.passes.remat import Range, rematerialize
from partir_search.plan.planned import Planned
from partir_search.planning.front.points import Costed, costed_as
from partir_search.planning.memory_fit import kinds_of, renamed_for
from partir_search.planning.planner import Planner
from partir_search.planning.segment_peaks import predict_segments
from partir_search.propagation.actions import Action

STEPS = 8  # limits between the peaks with all and with no segment


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Predicted:
    """Decisions with some segments recomputed, with predicted figures.

    Attributes:
      seconds / peak_bytes: predicted figures of a step on one device.
      strategy: origin of the decisions, in words.
      actions: decisions, of any form.
      remat: the segments.
    """

    seconds: float
    peak_bytes: float
    strategy: str
    actions: tuple[Action, ...]
    remat: tuple[Range, ...]


class Forms:
    """Forms of a program by the segments computed again, with a planner each.

    Attributes:
      ends: segments of the forms with none and with all recomputed, or of the only form.
    """

    def __init__(
        self,
        plain: Module,
        ends: Sequence[tuple[Range, ...]],
        known: Mapping[tuple[Range, ...], Module],
        planner_of: Callable[[Module], Planner],
    ) -> None:
        """Forms of `plain`.

        Args:
          plain: the program without recomputation.
          ends: see `Forms`.
          known: forms rewritten before, by segments.
          planner_of: function from a form to its planner.
        """
        self.plain, self._planner_of = plain, planner_of
        self.ends = tuple(dict.fromkeys(ends))
        self._modules = {(): plain, **known}
        self._planners: dict[tuple[Range, ...], Planner] = {}

    def module(self, remat: tuple[Range, ...]) -> Module:
        """The program with some segments computed again."""
        if remat not in self._modules:
            self._modules[remat] = rematerialize(self.plain, remat)
        return self._modules[remat]

    def planner(self, remat: tuple[Range, ...]) -> Planner:
        """Planner of a form; kept for the forms with none and with all segments."""
        if remat in self._planners:
            return self._planners[remat]
        planner = self._planner_of(self.module(remat))
        if remat in self.ends:
            self._planners[remat] = planner
        return planner

    def played(self, remat: tuple[Range, ...], actions: Sequence[Action]) -> tuple[Planned, bool]:
        """Plan of a form by the legal actions of a plan of another form; True if all are legal."""
        planner = self.planner(remat)
        planned, dropped = planner.replay_compatible(renamed_for(planner.module, actions))
        return planned, not dropped

    def shared(
        self, actions: Sequence[Action], strategy: str, limit: float
    ) -> tuple[list[Costed], list[Predicted]]:
        """Decisions with no, all and some segments recomputed.

        Args:
          actions: the decisions.
          strategy: their origin, in words.
          limit: bytes per device allowed by the goals; segments are chosen for this limit, and for
            limits between both peaks.

        Returns:
          The decisions with no and with all segments, and predictions with some; none of these if
          actions do not hold in both forms, or recomputation frees nothing.
        """
        (none, plays), (full, plays_again) = (self.played(remat, actions) for remat in self.ends)
        costed = [costed_as(p, strategy, r) for p, r in zip((none, full), self.ends, strict=True)]
        segments = self.ends[-1]
        high, low = none.cost.peak_bytes, full.cost.peak_bytes
        kinds, peaks = kinds_of(self.plain, segments), None
        if plays and plays_again and low < high:
            peaks = predict_segments(self.plain, segments, kinds, none, full)
        if peaks is None:
            return costed, []
        error = low - peaks.peak(segments)
        limits = np.geomspace(high, low, STEPS + 2)[1:-1].tolist()
        limit *= 1.0 - full.model.machine.traits.memory_fragmentation_fraction
        limits += [limit] if low < limit < high else []
        some = dict.fromkeys(peaks.fewest(each - error, kinds) for each in limits)
        return costed, [
            Predicted(
                seconds=float(full.cost.seconds - peaks.spent(segments) + peaks.spent(remat)),
                peak_bytes=float(peaks.peak(remat) + error),
                strategy=strategy,
                actions=tuple(actions),
                remat=remat,
            )
            for remat in some
            if remat and remat != segments
        ]
