"""Remedies for plans over the memory limit."""

from __future__ import annotations

import dataclasses

from partir_search.messages.wording import amount, duration


@dataclasses.dataclass(frozen=True, slots=True)
class Remedy:
    """A change that makes a step fit in memory.

    Attributes:
      what: description with figures.
      peak_bytes: peak bytes per device after the change.
      seconds: simulated seconds per step after the change; 0 if not planned.
    """

    what: str
    peak_bytes: float
    seconds: float = 0.0

    def __str__(self) -> str:
        cost = f", {duration(self.seconds)} a step" if self.seconds else ""
        return f"{self.what}: {amount(self.peak_bytes)}{cost}"
