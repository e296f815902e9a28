"""Figures of one measured segment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from partir_search.segments.segment import Segment

Done = Callable[[str], None]
"""Called after each segment with a line of text, for a bar of progress."""


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """Figures of one run of a segment, per device.

    Attributes:
      seconds: whole segment. On devices with the CPU's clock: CPU seconds over the number of
        devices.
      compute: kernels without collectives; NaN if not told apart.
      spread: relative distance between the quartiles of the runs; 0 for a compiler's figures.
      runs: number of timed runs; 0 for a compiler's figures.
      temp_bytes: temporaries by the compiler.
    """

    seconds: float
    compute: float
    spread: float
    runs: int
    temp_bytes: int


def unmeasured(segments: Sequence[Segment], known: Callable[[str], bool]) -> list[Segment]:
    """Segments to measure, one for each key not `known`."""
    return list({each.key: each for each in segments if not known(each.key)}.values())
