"""Cost of one step on one device, in total and per op."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from partir_search.messages.wording import amount


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one step of a program on one device.

    Attributes:
      seconds: whole step; `compute_seconds` + `collective_seconds` (exposed ones only).
      peak_bytes: most bytes live at once, arguments included.
      flops: floating-point operations on one device.
      bytes_by_axis / bytes_by_kind: bytes sent by one device.
    """

    seconds: float
    compute_seconds: float
    collective_seconds: float
    peak_bytes: float
    argument_bytes: float
    flops: float
    bytes_by_axis: Mapping[str, float]
    bytes_by_kind: Mapping[str, float]

    def __str__(self) -> str:
        return (
            f"{self.seconds * 1e3:.3f} ms ({self.collective_seconds * 1e3:.3f} ms exposed"
            f" communication), peak {amount(self.peak_bytes)}"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class OpCost:
    """One kernel's or collective's part of a step on one device.

    Attributes:
      kind: the primitive, or the collective.
      value: name of the value that is computed or moved.
      times: runs per step; `seconds`, `flops` and `bytes` are of all runs together.
      traits: names of the compiler's traits that the price depends on (docs/evidence/traits.md).
    """

    kind: str
    value: str
    source: str
    times: float
    seconds: float
    flops: float
    bytes: float
    traits: tuple[str, ...] = ()
