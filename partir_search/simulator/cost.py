"""Cost of one step on one device, in total and per op."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from partir_search.messages.wording import amount, milliseconds


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one step of a program on one device.

    Attributes:
      seconds: whole step, the sum of `compute_seconds` and `collective_seconds`.
      compute_seconds: kernels and copies.
      collective_seconds: exposed seconds of collectives, not hidden by compute.
      peak_bytes: most live bytes at any point of the step, arguments included.
      argument_bytes: bytes of arguments and constants.
      flops: floating-point operations on one device.
      bytes_by_axis / bytes_by_kind: bytes sent by one device, by mesh axes, by kind of collective.
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
            f"{milliseconds(self.seconds)} ({milliseconds(self.collective_seconds)} exposed"
            f" communication), peak {amount(self.peak_bytes)}"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class OpCost:
    """Cost of one kernel or collective on one device.

    Attributes:
      kind: the primitive, or the collective.
      value: name of the value computed or moved.
      source: file and line of the op in the user's program.
      times: runs per step.
      seconds / flops / bytes: totals of all runs.
      traits: names of the compiler's traits behind the cost (docs/evidence/traits.md).
    """

    kind: str
    value: str
    source: str
    times: float
    seconds: float
    flops: float
    bytes: float
    traits: tuple[str, ...] = ()
