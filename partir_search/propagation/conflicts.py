"""Conflicts: nodes without a loop because their values ask for several factors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from partir_search.ir.rule import NONE
from partir_search.propagation.state import State


@dataclasses.dataclass(frozen=True, slots=True)
class Conflict:
    """A node whose values ask for several factors on one axis.

    Attributes:
      candidates: (factor, class that asks for the factor) pairs.
    """

    node: int
    axis: int
    candidates: tuple[tuple[int, int], ...]


def find_conflicts(state: State) -> Iterator[Conflict]:
    """Conflicts of a state, axis by axis."""
    for axis, (tiles, loops) in enumerate(zip(state.tiles, state.loops, strict=True)):
        for n, node in enumerate(state.graph.nodes):
            candidates: dict[int, int] = {}
            structure = node.structure
            for p, (cls, dims) in enumerate(node.ports):
                d = tiles[cls]
                if d < 0:
                    continue
                f = dims[d]
                if structure.major_factors:
                    f = state.free_factor(n, structure.factors_on[p][d], axis)
                if f >= 0 and structure.sizes[f]:
                    candidates.setdefault(f, cls)
            if loops[n] == NONE and len(candidates) > 1:
                yield Conflict(n, axis, tuple(candidates.items()))
