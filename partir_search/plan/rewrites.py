"""Rewrites of a program before the actions of a plan apply."""

from __future__ import annotations

import dataclasses

from partir_search.passes.pad_choice import Pad
from partir_search.passes.remat import Range


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rewrites:
    """Rewrites of a traced program, in the order in which they are applied.

    Attributes:
      microbatches: parts of the batch, whose gradients are accumulated one after the other.
      attention: whether each attention is one op, which recomputes its scores for gradients.
      padding: dims that are padded inside the program, one of each class of equal dims.
      remat: segments of the forward pass, by position, that are computed again.
    """

    microbatches: int = 1
    attention: bool = False
    padding: tuple[Pad, ...] = ()
    remat: tuple[Range, ...] = ()


class Rewritten:
    """A plan, whose rewrites are its attributes too."""

    __slots__ = ()
    rewrites: Rewrites

    @property
    def remat(self) -> tuple[Range, ...]:
        """Segments of the forward pass, by position, that are computed again."""
        return self.rewrites.remat

    @property
    def microbatches(self) -> int:
        """Parts of the batch, whose gradients are accumulated one after the other."""
        return self.rewrites.microbatches

    @property
    def padding(self) -> tuple[Pad, ...]:
        """Dims that are padded inside the program, one of each class of equal dims."""
        return self.rewrites.padding

    @property
    def attention(self) -> bool:
        """True if each attention is one op, which recomputes its scores for gradients."""
        return self.rewrites.attention
