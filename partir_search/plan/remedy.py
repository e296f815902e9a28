"""Remedies for a plan that does not fit in memory."""

from __future__ import annotations

import dataclasses

from partir_search.messages.wording import amount, duration


@dataclasses.dataclass(frozen=True, slots=True)
class Remedy:
    """Something that would make a step fit.

    Attributes:
      what: in words, with figures.
      peak_bytes / seconds: of the plan that fits with it; seconds 0 where it was not planned.
    """

    what: str
    peak_bytes: float
    seconds: float = 0.0

    def __str__(self) -> str:
        cost = f", {duration(self.seconds)} a step" if self.seconds else ""
        return f"{self.what}: {amount(self.peak_bytes)}{cost}"
