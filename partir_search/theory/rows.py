"""Rows of the theory's table: a quantity, its value, its formula, and the lecture's."""

from __future__ import annotations

import dataclasses

from partir_search.messages.wording import amount, duration

SECONDS, BYTES, SHARE, RATE = "s", "bytes", "share", "bytes/s"
_PREFIXES = (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6))


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One quantity.

    Attributes:
      topic: heading of the row.
      name: the quantity.
      value: in `unit`.
      unit: `SECONDS`, `BYTES`, `SHARE` (0 to 1), `RATE`, or the unit's name.
      formula: with the symbols of the lecture.
      lecture: its formula or figure, if another.
    """

    topic: str
    name: str
    value: float
    unit: str
    formula: str = ""
    lecture: str = ""

    @property
    def text(self) -> str:
        """Value with its unit."""
        if self.unit == SECONDS:
            return duration(self.value) if self.value >= 0 else f"-{duration(-self.value)}"
        if self.unit == BYTES:
            return amount(self.value)
        if self.unit == RATE:
            return f"{amount(self.value)}/s"
        if self.unit == SHARE:
            return f"{self.value:.1%}"
        for name, size in _PREFIXES:
            if self.value >= size:
                return f"{self.value / size:.4g} {name} {self.unit}"
        digits = 0 if self.value >= 100 else 2
        return f"{self.value:,.{digits}f} {self.unit}"
