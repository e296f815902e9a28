"""Barriers on the path of a decision's propagation; farther barriers do not change the state."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np

from partir_search.ir.rule import NONE
from partir_search.propagation.state import State


def reached_barriers(
    state: State, axes: Sequence[int], before: Sequence[array[int]], barriers: Iterable[int]
) -> list[int]:
    """Undecided barriers with a node beside a class that a decision has tiled.

    A class is tiled from a node, and a node gets a loop from a tile of one of the node's classes.
    No tile comes near the other barriers, with or without these.

    Args:
      state: after the decision.
      axes: of the decision.
      before: [axes] tiles of classes before the decision.
    """
    given = np.array(list(barriers), dtype=np.int64)
    adjacency, found = state.graph.adjacency, np.zeros(len(given), dtype=np.bool_)
    for axis, row in zip(axes, before, strict=True):
        tiles, now = (np.frombuffer(r, dtype=np.int8) for r in (row, state.tiles[axis]))
        changed = np.flatnonzero(tiles != now).astype(np.int32)
        near = np.zeros(len(tiles), dtype=np.bool_)
        near[adjacency.classes(adjacency.nodes(changed))] = True
        found |= near[given] & (tiles[given] == NONE)
    reached: list[int] = given[found].tolist()
    return reached
