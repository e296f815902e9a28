"""Known strategies and changes by the user beside a plan, with figures of the same simulator."""

from __future__ import annotations

import dataclasses
from typing import Literal

from partir_search.messages.wording import amount, duration, milliseconds
from partir_search.simulator.cost import Cost

Recomputed = Literal["none", "as the plan", "all"]


@dataclasses.dataclass(frozen=True, slots=True)
class Alternative:
    """Known strategy beside a plan, on the plan's form of the program.

    Attributes:
      name: name of the strategy, "BP(data)+MP(model)+Z3".
      cost: simulated cost per step on one device, of the whole program.
      fits: True if the peak is within the memory limit.
      recomputed: segments of the forward pass computed again.
      alike: names of further strategies with the same figures, on axes of equal sizes.
    """

    name: str
    cost: Cost
    fits: bool
    recomputed: Recomputed = "none"
    alike: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """Change by the user beside a plan, with the figures of a step after the change.

    Attributes:
      what: the change in words.
      how: option, mesh or shapes behind the change.
      plan: decisions behind the figures: this plan's actions or a known strategy's name.
      seconds: simulated seconds per step.
      relative: seconds per example divided by the plan's.
      peak_bytes: peak bytes per device.
      fits: True if the peak is within the memory limit.
    """

    what: str
    how: str
    plan: str
    seconds: float
    relative: float
    peak_bytes: float
    fits: bool

    def __str__(self) -> str:
        fits = "" if self.fits else ", does not fit"
        return f"{self.what} ({self.how}): {self.relative - 1:+.1%} per example{fits}"


@dataclasses.dataclass(frozen=True, slots=True)
class TriedPipeline:
    """A pipeline planned in full, or the step without one, of which the best plan was taken.

    Attributes:
      name: "16 stages of 4 chunks each on 'stage' (1f1b), 32 microbatches", or "no pipeline".
      closed_seconds: seconds of the ticks by closed form; None for given numbers.
      cost: simulated cost of the plan.
      fits: True if the peak is within the memory limit.
    """

    name: str
    closed_seconds: float | None
    cost: Cost
    fits: bool

    def __str__(self) -> str:
        closed = f" ({duration(self.closed_seconds)} by formula)" if self.closed_seconds else ""
        limit = "" if self.fits else ", does not fit"
        peak = amount(self.cost.peak_bytes)
        return f"{self.name}: {milliseconds(self.cost.seconds)}{closed}, {peak}{limit}"
