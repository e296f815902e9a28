"""Lower bound of the seconds of all plans of a space, beside the plan found (`plan.bound`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from partir_search.plan.json_entries import typed_entry

LEFT_OUT = "rings", "kept copies", "pipelines and recomputation"
LEAST_LESS = 1e-4  # relative, to call a plan faster than every plan of the space
ROUNDING = 1e-6  # relative; a plan as near to the bound is the optimum


@dataclasses.dataclass(frozen=True, slots=True)
class PlanBound:
    """Lower bound of the seconds of a step, over all plans of a space.

    The space: all tilings and loops along the search's axes, after the decisions before the search;
    equal layers alike; without rings, kept copies, pipelines and recomputation. Limits of memory
    may exclude plans of the space, and leave the bound valid.

    Attributes:
      seconds: no plan of the space takes fewer, by the simulator.
      found: seconds of the plan found, with equal layers folded as in the space; of a plan with
        recomputation, which folds otherwise, of the whole program.
      without: further decisions that no plan of the space has: "sub-axes", "padding", "stacks".
    """

    seconds: float
    found: float
    without: tuple[str, ...] = ()

    @property
    def gap(self) -> float:
        """Seconds of the plan found above the bound, relative; 0 for a plan at the bound, whose
        seconds may differ by rounding; negative for a faster plan outside of the space (with rings,
        say); infinite above a bound of 0.
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
        colon = ":" * (self.nearness == "optimal")
        return f"{self.nearness}{colon} {self.reference} ({self.space})"

    @property
    def space(self) -> str:
        """Text of the space."""
        left_out = ", ".join((*self.without, *LEFT_OUT))
        return (
            f"all tilings and loops with equal layers alike, without {left_out},"
            " by the simulator's costs"
        )

    @property
    def nearness(self) -> str:
        """The gap in percent: "within 2.8 %", rounded up; "optimal" without a gap; "2.8 % less
        time", rounded down, for a plan outside of the space.
        """
        if self.optimal:
            return f"{_percent(-self.gap)} less time" if self._is_outside else "optimal"
        if math.isinf(self.gap):
            return "within any factor"
        return f"within {_percent(self.gap, up=True)}"

    @property
    def reference(self) -> str:
        """Plans that `nearness` refers to."""
        if self._is_outside:
            return "than every plan of this space"
        if self.optimal:
            return "no plan of this space takes fewer seconds"
        return "of the best plan of this space"

    @property
    def _is_outside(self) -> bool:
        """True for a plan in less time than every plan of the space."""
        return self.gap <= -LEAST_LESS

    def to_json(self) -> dict[str, Any]:
        """Fields without empty ones, as JSON values."""
        data: dict[str, Any] = {"seconds": self.seconds, "found": self.found}
        return {**data, "without": list(self.without)} if self.without else data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlanBound:
        """Inverse of `to_json`.

        Raises:
          KeyError or ValueError: `data` was not written by `to_json`.
        """
        seconds, found = (
            typed_entry(data, name, float, "seconds") for name in ("seconds", "found")
        )
        without = typed_entry(data, "without", list, "names") if "without" in data else ()
        return cls(seconds, found, tuple(map(str, without)))


def _percent(share: float, *, up: bool = False) -> str:
    """A share in percent, rounded up or down."""
    digits = 1 if share > 1e-2 else 2
    steps = share * 100.0 * 10**digits
    rounded = math.ceil(steps - 1e-6) if up else math.floor(steps + 1e-6)
    return f"{rounded / 10**digits:.{digits}f} %"
