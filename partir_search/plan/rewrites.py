"""Rewrites of a program before a plan's actions."""

from __future__ import annotations

import dataclasses

from partir_search.passes.pad_choice import Pad
from partir_search.passes.remat import Range


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rewrites:
    """Rewrites of a traced program, in order of application.

    Attributes:
      microbatches: number of parts of the batch; gradients are accumulated over the parts.
      attention: True if each attention is one op and its scores are recomputed in the backward
        pass.
      padding: dims padded inside the program, one per class of equal dims.
      remat: segments of the forward pass (positions of ops) recomputed in the backward pass.
    """

    microbatches: int = 1
    attention: bool = False
    padding: tuple[Pad, ...] = ()
    remat: tuple[Range, ...] = ()


class Rewritten:
    """Mixin with the fields of `rewrites` as attributes."""

    __slots__ = ()
    rewrites: Rewrites

    @property
    def remat(self) -> tuple[Range, ...]:
        """Segments of the forward pass (positions of ops) recomputed in the backward pass."""
        return self.rewrites.remat

    @property
    def microbatches(self) -> int:
        """Number of parts of the batch; gradients are accumulated over the parts."""
        return self.rewrites.microbatches

    @property
    def padding(self) -> tuple[Pad, ...]:
        """Dims padded inside the program, one per class of equal dims."""
        return self.rewrites.padding

    @property
    def attention(self) -> bool:
        """True if each attention is one op and its scores are recomputed in the backward pass."""
        return self.rewrites.attention
