"""Effects of decisions on one axis, kept so that an equal state need not propagate them again.

A search plays the same decisions again and again, in states that differ elsewhere: nine of ten
propagations are repeats.
"""

from __future__ import annotations

import dataclasses
import functools
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from partir_search.propagation.frontier import Places

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.int8]
Bools = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, slots=True)
class Checks:
    """Places where it was asked whether the axis divides what the other axes leave of an extent.

    Attributes:
      at / on: classes and their dims, or nodes and their factors.
      extents: in the program.
      passed: the answers.
    """

    at: Places
    on: Bytes
    extents: Ints
    passed: Bools

    def answers(
        self, axis: int, rows: Sequence[array[int]], sizes: Sequence[int], *, even: bool
    ) -> Bools:
        """The answers in another state.

        Args:
          rows: [axes] tiles of classes, or loops of nodes.
          even: whether what others do not divide evenly is never divided further.
        """
        left = self.extents
        for a, size in enumerate(sizes):
            if a != axis and size > 1:
                held = np.frombuffer(rows[a], dtype=np.int8)[self.at] == self.on
                if held.any():
                    less = left // size
                    if even:
                        less[left % size != 0] = 0
                    left = np.where(held, less, left)
        divides: Bools = left % sizes[axis] == 0
        return divides & (left > 0) if even else divides


@dataclasses.dataclass(frozen=True)
class Spread:
    """Effect of one decision on one axis, to be done again where an axis of its size is the same.

    Attributes:
      axis: on which the effect was worked out.
      near / were: classes and nodes that were looked at, and their tiles and loops before.
      classes / dims: classes that became tiled, and their dims.
      nodes / factors: nodes that began to loop, and their factors.
      untiled / unlooped: (class, dim) and (node, factor) that other axes kept the decision from.
      shapes / sizes: extents of all classes' dims and nodes' factors.
      stacked / beside: nodes with several factors on a dim, and [axes, stacked] what the axes
        looped over there: factors beneath others depend on it.
      entangled: whether other axes had a say in the effect besides: the whole state is its key.
    """

    axis: int
    near: tuple[Places, Places]
    were: tuple[bytes, bytes]
    classes: Places
    dims: Bytes
    nodes: Places
    factors: Bytes
    untiled: Sequence[tuple[int, int]]
    unlooped: Sequence[tuple[int, int]]
    shapes: Sequence[Sequence[int]]
    sizes: Sequence[Sequence[int]]
    stacked: Places
    beside: Bytes
    entangled: bool

    @functools.cached_property
    def tiled(self) -> Checks:
        """All that was asked on the way about other axes' tilings."""
        return _checks(self.classes, self.dims, self.untiled, self.shapes)

    @functools.cached_property
    def looped(self) -> Checks:
        """All that was asked on the way about other axes' loops."""
        return _checks(self.nodes, self.factors, self.unlooped, self.sizes)

    def holds(
        self,
        axis: int,
        tiles: Sequence[array[int]],
        loops: Sequence[array[int]],
        sizes: Sequence[int],
    ) -> bool:
        """Tells whether the decision has the same effect now: if tiles and loops looked at on the
        axis are as before, and every question about other axes has the same answer.

        Args:
          tiles, loops: [axes] rows of the state.
        """
        if self.entangled:
            return True
        for rows, near, were in zip((tiles, loops), self.near, self.were, strict=True):
            if np.frombuffer(rows[axis], dtype=np.int8)[near].tobytes() != were:
                return False
        for checks, rows, even in ((self.tiled, tiles, True), (self.looped, loops, False)):
            if (checks.answers(axis, rows, sizes, even=even) != checks.passed).any():
                return False
        if not len(self.stacked):
            return True
        same = beside(axis, loops, self.stacked) == self.beside
        return axis == self.axis and bool(same.all())

    def repeat(self, tiles: array[int], loops: array[int]) -> None:
        """Does it to an axis."""
        np.frombuffer(tiles, dtype=np.int8)[self.classes] = self.dims
        np.frombuffer(loops, dtype=np.int8)[self.nodes] = self.factors


def _checks(
    at: Places, on: Bytes, refused: Sequence[tuple[int, int]], extents: Sequence[Sequence[int]]
) -> Checks:
    """Checks of what was done, and of what was refused."""
    places = [*zip(at.tolist(), on.tolist(), strict=True), *dict.fromkeys(refused)]
    both = np.array(places, dtype=np.int32).reshape(-1, 2)
    passed = np.arange(len(places)) < len(at)
    sizes = np.array([extents[i][k] for i, k in places], dtype=np.int64)
    return Checks(both[:, 0].copy(), both[:, 1].astype(np.int8), sizes, passed)


def beside(axis: int, loops: Sequence[array[int]], nodes: Places) -> Bytes:
    """[axes, nodes] what the other axes loop over."""
    rows = [row for a, row in enumerate(loops) if a != axis]
    return np.array([np.frombuffer(row, dtype=np.int8)[nodes] for row in rows], dtype=np.int8)


Spreads = dict[tuple[object, ...], list[Spread]]  # by decision, the last one first
