"""Memo of propagations: recorded effects of decisions on one axis, repeated where they hold.

A search applies equal decisions in states with differences on further axes or in distant values:
nine of ten propagations repeat an earlier one.
"""

from __future__ import annotations

import dataclasses
import functools
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from partir_search.propagation.adjacency import Places

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.int8]
Bools = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, slots=True)
class Checks:
    """Divisibility checks of one propagation: each asks if the axis divides the extent of a dim or
    factor that remains after the tiles or loops of the remaining axes.

    Attributes:
      ids / numbers: [checks] classes and dims, or nodes and factors.
      extents: [checks] extents in the program, before any tiling.
      passed: [checks] answers in the recorded propagation.
    """

    ids: Places
    numbers: Bytes
    extents: Ints
    passed: Bools

    def answers(
        self, axis: int, rows: Sequence[array[int]], sizes: Sequence[int], *, even: bool
    ) -> Bools:
        """[checks] answers in another state.

        Args:
          rows: [axes] tiles of classes, or loops of nodes.
          sizes: [axes] sizes of the mesh axes.
          even: answer False once an axis of `rows` does not divide the extent evenly.
        """
        remaining = self.extents
        for a, size in enumerate(sizes):
            if a != axis and size > 1:
                used = np.frombuffer(rows[a], dtype=np.int8)[self.ids] == self.numbers
                if True in used.tobytes():  # hot: `any` takes several times as long
                    quotient = remaining // size
                    if even:
                        quotient[remaining % size != 0] = 0
                    remaining = np.where(used, quotient, remaining)
        divides: Bools = remaining % sizes[axis] == 0
        return divides & (remaining > 0) if even else divides


@dataclasses.dataclass(frozen=True)
class PropagationEffect:
    """Changes by one decision on one axis, and the facts behind them.

    Attributes:
      axis: mesh axis of the recorded propagation.
      inspected: classes and nodes read by the propagation.
      before: bytes of the tiles and loops of `inspected` before the decision.
      classes / dims: newly tiled classes, and their dims.
      nodes / factors: nodes with a new loop, and their factors.
      untiled / unlooped: (class, dim) and (node, factor) pairs refused because of tiles or loops
        of another axis.
      shapes / sizes: extents of the dims of all classes, and of the factors of all nodes.
      compound: inspected nodes with several factors on one dim.
      other_loops: [axes - 1, compound] loops of the remaining axes at `compound`.
      depends_on_all_axes: the key of the memo holds the whole state (axes with a diagonal).
    """

    axis: int
    inspected: tuple[Places, Places]
    before: tuple[bytes, bytes]
    classes: Places
    dims: Bytes
    nodes: Places
    factors: Bytes
    untiled: Sequence[tuple[int, int]]
    unlooped: Sequence[tuple[int, int]]
    shapes: Sequence[Sequence[int]]
    sizes: Sequence[Sequence[int]]
    compound: Places
    other_loops: Bytes
    depends_on_all_axes: bool

    @functools.cached_property
    def tile_checks(self) -> Checks:
        """Checks of dims against tiles of the remaining axes."""
        return _checks(self.classes, self.dims, self.untiled, self.shapes)

    @functools.cached_property
    def loop_checks(self) -> Checks:
        """Checks of factors against loops of the remaining axes."""
        return _checks(self.nodes, self.factors, self.unlooped, self.sizes)

    def holds(
        self,
        axis: int,
        tiles: Sequence[array[int]],
        loops: Sequence[array[int]],
        sizes: Sequence[int],
    ) -> bool:
        """True if the decision has the same effect on `axis` of another state.

        The inspected tiles and loops on `axis` must be equal to the recorded ones, and all checks
        against the remaining axes must give the recorded answers.

        Args:
          tiles, loops: [axes] rows of the state.
          sizes: [axes] sizes of the mesh axes.
        """
        if self.depends_on_all_axes:
            return True
        for rows, ids, before in zip((tiles, loops), self.inspected, self.before, strict=True):
            if np.frombuffer(rows[axis], dtype=np.int8)[ids].tobytes() != before:
                return False
        pairs = ((self.tile_checks, tiles, True), (self.loop_checks, loops, False))
        for checks, rows, even in pairs:
            answers = checks.answers(axis, rows, sizes, even=even)
            if answers.tobytes() != checks.passed.tobytes():
                return False
        if not len(self.compound):
            return True
        same = other_loops(axis, loops, self.compound) == self.other_loops
        return axis == self.axis and bool(same.all())

    def repeat(self, tiles: array[int], loops: array[int]) -> None:
        """Applies the recorded changes to the rows of an axis."""
        np.frombuffer(tiles, dtype=np.int8)[self.classes] = self.dims
        np.frombuffer(loops, dtype=np.int8)[self.nodes] = self.factors


def _checks(
    ids: Places,
    numbers: Bytes,
    refused: Sequence[tuple[int, int]],
    extents: Sequence[Sequence[int]],
) -> Checks:
    """Checks of passed (`ids`, `numbers`) and failed (`refused`) questions."""
    pairs = [*zip(ids.tolist(), numbers.tolist(), strict=True), *dict.fromkeys(refused)]
    both = np.array(pairs, dtype=np.int32).reshape(-1, 2)
    passed = np.arange(len(pairs)) < len(ids)
    sizes = np.array([extents[i][k] for i, k in pairs], dtype=np.int64)
    return Checks(both[:, 0].copy(), both[:, 1].astype(np.int8), sizes, passed)


def other_loops(axis: int, loops: Sequence[array[int]], nodes: Places) -> Bytes:
    """[axes - 1, nodes] loops of the axes besides `axis`."""
    rows = [row for a, row in enumerate(loops) if a != axis]
    return np.array([np.frombuffer(row, dtype=np.int8)[nodes] for row in rows], dtype=np.int8)


PropagationMemo = dict[tuple[object, ...], list[PropagationEffect]]  # by decision, latest first
