"""What a decision did to one axis, kept so that an equal state need not propagate it again.

A search plays the same decisions again and again, in states that differ on other axes only: four
of five propagations are repeats.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.int8]


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """What one decision did to one axis, to be done again where an axis of its size is the same.

    Attributes:
      axis: on which it was worked out.
      classes / dims: what became tiled, and how.
      nodes / factors: what began to loop, and over what.
      stacked / beside: nodes with several factors on a dim, and [axes, stacked] what the axes
        looped over there: factors beneath others depend on it.
      entangled: whether another axis had a say in it: it holds for an equal state only.
    """

    axis: int
    classes: Ints
    dims: Bytes
    nodes: Ints
    factors: Bytes
    stacked: Ints
    beside: Bytes
    entangled: bool

    def holds(
        self,
        axis: int,
        tiles: Sequence[array[int]],
        loops: Sequence[array[int]],
        sizes: Sequence[int],
    ) -> bool:
        """Whether the decision does the same now, whatever was decided on other axes; not if one
        of them has a say in it.

        Args:
          tiles, loops: [axes] rows of the state, that of `axis` equal to what it was.
        """
        if self.entangled:
            return False
        for a, size in enumerate(sizes):
            if a != axis and size > 1:
                tiled, looped = (np.frombuffer(rows[a], dtype=np.int8) for rows in (tiles, loops))
                if (tiled[self.classes] == self.dims).any() or (
                    looped[self.nodes] == self.factors
                ).any():
                    return False
        if not len(self.stacked):
            return True
        same = beside(axis, loops, self.stacked) == self.beside
        return axis == self.axis and bool(same.all())


def beside(axis: int, loops: Sequence[array[int]], nodes: Ints) -> Bytes:
    """[axes, nodes] what the other axes loop over."""
    rows = [row for a, row in enumerate(loops) if a != axis]
    return np.array([np.frombuffer(row, dtype=np.int8)[nodes] for row in rows], dtype=np.int8)


Spreads = dict[tuple[object, ...], Spread]
