"""A tile and its halos from neighbouring devices, before concatenation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from jax import lax


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("low", "tile", "high"), meta_fields=("dim",)
)
@dataclasses.dataclass(frozen=True)
class HaloedTile:
    """Window of an operand along `dim`, in up to three pieces.

    Attributes:
      low / high: halos before and after the tile, or None.
    """

    dim: int
    low: Any
    tile: Any
    high: Any

    @property
    def pieces(self) -> list[Any]:
        """Pieces that are present, in order."""
        return [x for x in (self.low, self.tile, self.high) if x is not None]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole window."""
        n = list(self.tile.shape)
        n[self.dim] = sum(x.shape[self.dim] for x in self.pieces)
        return tuple(n)

    def map_pieces(self, change: Callable[[Any], Any]) -> HaloedTile:
        """Pieces with `change` applied to each; it must keep `dim`."""
        low, high = (None if x is None else change(x) for x in (self.low, self.high))
        return HaloedTile(self.dim, low, change(self.tile), high)


def joined(x: Any) -> Any:
    """The array; a window in pieces is concatenated."""
    return lax.concatenate(x.pieces, x.dim) if isinstance(x, HaloedTile) else x
