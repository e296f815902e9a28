"""A tile with what neighbours sent beside it, not yet put together."""

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
class Beside:
    """A stretch of `dim` in up to three parts.

    Attributes:
      low / high: elements before and after the tile's, or None.
    """

    dim: int
    low: Any
    tile: Any
    high: Any

    @property
    def parts(self) -> list[Any]:
        """The parts that are there, in order."""
        return [x for x in (self.low, self.tile, self.high) if x is not None]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the stretch."""
        n = list(self.tile.shape)
        n[self.dim] = sum(x.shape[self.dim] for x in self.parts)
        return tuple(n)

    def each(self, change: Callable[[Any], Any]) -> Beside:
        """The parts, changed along other dims."""
        low, high = (None if x is None else change(x) for x in (self.low, self.high))
        return Beside(self.dim, low, change(self.tile), high)


def together(x: Any) -> Any:
    """An array, put together if it is in parts."""
    return lax.concatenate(x.parts, x.dim) if isinstance(x, Beside) else x
