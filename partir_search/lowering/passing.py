"""One turn of an op whose operands' blocks pass around a mesh axis."""

from __future__ import annotations

import dataclasses

from partir_search.lowering.slots import Slot


@dataclasses.dataclass(frozen=True, slots=True)
class Passing:
    """One turn of an op whose blocks pass around.

    Attributes:
      axes: that they pass around, major to minor: one of the user's, perhaps in parts.
      size: devices along them, and turns.
      offset: of the block, from the device's own.
      moving: operands that are blocks; others are whole, and read at the block.
      zigzag: whether blocks are two chunks each (`lowering/zigzag.py`).
      parts: of a block (or chunk), which are worked on one after the other.
      arrived: sums of the block so far, by position among the returning results.
    """

    axes: tuple[int, ...]
    size: int
    offset: int
    moving: tuple[int, ...]
    zigzag: bool
    parts: int
    arrived: tuple[Slot, ...] = ()

    @property
    def share(self) -> float:
        """Of the pairs of queries and keys in a block, those that are worked on."""
        return 1.0 if not self.zigzag else 0.5 if self.offset else 0.75
