"""Parts of a batch in sequence, and the rows of each part.

A dim of extent E is read as [blocks, count, E / (blocks * count)], and part j is [:, j, :] with the
outer two dims joined. Each of `blocks` devices along the dim thus has rows of every part.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import lax

from partir_search.ir.core import Shape


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    """Split of dims into parts.

    Attributes:
      count: number of parts.
      blocks: stretches of a dim with rows of every part; `blocks * count` divides every split dim.
    """

    count: int
    blocks: int

    def split(self, shape: Shape, dim: int) -> Shape:
        """Shape of a whole array with dim `dim` read as three."""
        rest = shape[dim] // (self.blocks * self.count)
        return (*shape[:dim], self.blocks, self.count, rest, *shape[dim + 1 :])

    def part_shape(self, shape: Shape, dim: int) -> Shape:
        """Shape of one part of a whole array."""
        return (*shape[:dim], shape[dim] // self.count, *shape[dim + 1 :])

    def positions(self, extent: int, part: Any) -> Any:
        """[extent / count] int32 positions, in the whole dim, of the rows of a part.

        Args:
          extent: of the whole dim.
          part: number of the part, an int32 scalar.
        """
        rest = extent // (self.blocks * self.count)
        row = lax.iota(jnp.int32, extent // self.count)
        block, inside = (row, 0) if rest == 1 else (row // rest, row % rest)
        return block * (self.count * rest) + part * rest + inside

    def part(self, x: Any, dim: int, part: Any) -> Any:
        """One part of a whole array; `part` is an int32 scalar."""
        shape = self.part_shape(x.shape, dim)
        whole = x.reshape(self.split(x.shape, dim))
        return lax.dynamic_index_in_dim(whole, part, dim + 1, keepdims=False).reshape(shape)

    def stacked(self, x: Any, dim: int) -> Any:
        """All parts of a whole array, along a new leading dim."""
        shape = self.part_shape(x.shape, dim)
        whole = jnp.moveaxis(x.reshape(self.split(x.shape, dim)), dim + 1, 0)
        return whole.reshape((self.count, *shape))

    def joined(self, x: Any, dim: int) -> Any:
        """Whole array of all parts along a leading dim: the inverse of `stacked`."""
        part = x.shape[1:]
        shape = (*part[:dim], part[dim] * self.count, *part[dim + 1 :])
        split = self.split(shape, dim)
        parts = x.reshape((self.count, *split[: dim + 1], *split[dim + 2 :]))
        return jnp.moveaxis(parts, 0, dim + 1).reshape(shape)
