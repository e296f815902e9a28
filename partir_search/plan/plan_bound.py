"""Lower bound of the seconds of all plans of a space, beside the plan found (`plan.bound`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from partir_search.plan.json_entries import typed_entry

SPACE = (
    "all tilings and loops with equal layers alike, without rings, kept copies, pipelines and"
    " recomputation, by the simulator's costs"
)
ROUNDING = 1e-6  # relative; a plan as near to the bound is the optimum


@dataclasses.dataclass(frozen=True, slots=True)
class PlanBound:
    """Lower bound of the seconds of a step, over all plans of a space.

    The space: all tilings and loops along the search's axes, after the decisions before the search;
    equal layers alike; without rings, kept copies, pipelines and recomputation. Limits of memory
    may exclude plans of the space, and leave the bound valid.

    Attributes:
      seconds: no plan of the space takes fewer, by the simulator.
      found: seconds of the plan found, with equal layers folded as in the space.
    """

    seconds: float
    found: float

    @property
    def gap(self) -> float:
        """Seconds of the plan found above the bound, relative; 0 for a plan at the bound, whose
        seconds may differ by rounding; negative for a plan beyond the space (with rings, say);
        infinite above a bound of 0.
        """
        if self.seconds == 0.0:  # a step that computes nothing, say
            return 0.0 if self.found == 0.0 else math.inf
        gap = self.found / self.seconds - 1.0
        return 0.0 if abs(gap) <= ROUNDING else gap

    @property
    def optimal(self) -> bool:
        """True if no plan of the space takes fewer seconds than the plan found."""
        return self.gap <= ROUNDING

    def __str__(self) -> str:
        if self.optimal:
            return f"{self.nearness}: no plan of this space takes fewer seconds ({SPACE})"
        return f"{self.nearness} of the best plan of this space ({SPACE})"

    @property
    def nearness(self) -> str:
        """The gap in percent, rounded up, as in "within 2.8 %"; "optimal" without a gap."""
        if self.optimal:
            return "optimal"
        if math.isinf(self.gap):
            return "within any factor"
        digits = 1 if self.gap > 1e-2 else 2
        steps = math.ceil(self.gap * 100.0 * 10**digits - 1e-6)
        return f"within {steps / 10**digits:.{digits}f} %"

    def to_json(self) -> dict[str, float]:
        """Both figures, as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlanBound:
        """Inverse of `to_json`.

        Raises:
          KeyError or ValueError: `data` was not written by `to_json`.
        """
        figures = (typed_entry(data, name, float, "seconds") for name in ("seconds", "found"))
        return cls(*figures)
