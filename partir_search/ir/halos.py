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
class WindowParts:
    """Window of an operand along `dim`, in up to three parts.

    Attributes:
      low / high: halos before and after the tile, or None.
    """

    dim: int
    low: Any
    tile: Any
    high: Any

    @property
    def parts(self) -> list[Any]:
        """Parts that are present, in order."""
        return [x for x in (self.low, self.tile, self.high) if x is not None]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole window."""
        n = list(self.tile.shape)
        n[self.dim] = sum(x.shape[self.dim] for x in self.parts)
        return tuple(n)

    def map_parts(self, change: Callable[[Any], Any]) -> WindowParts:
        """Parts with `change` applied to each; it must keep `dim`."""
        low, high = (None if x is None else change(x) for x in (self.low, self.high))
        return WindowParts(self.dim, low, change(self.tile), high)


def joined(x: Any) -> Any:
    """The array; a window in parts is concatenated."""
    return lax.concatenate(x.parts, x.dim) if isinstance(x, WindowParts) else x
