"""Nodes that propagation leaves without a loop because several factors are asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from partir_search.propagation.state import State


@dataclasses.dataclass(frozen=True, slots=True)
class Conflict:
    """A node whose values point at several factors on one axis."""

    node: int
    axis: int
    candidates: tuple[tuple[int, int], ...]  # (factor, class that asks for it)


def find_conflicts(state: State) -> Iterator[Conflict]:
    """All conflicts of a state, by axis."""
    for axis, (tiles, loops) in enumerate(zip(state.tiles, state.loops, strict=True)):
        for n, node in enumerate(state.graph.nodes):
            asked: dict[int, int] = {}
            form = node.form
            for p, (cls, dims) in enumerate(node.ports):
                d = tiles[cls]
                if d < 0:
                    continue
                f = state.free_factor(n, form.held[p][d], axis) if form.above else dims[d]
                if f >= 0 and form.sizes[f]:
                    asked.setdefault(f, cls)
            if loops[n] < 0 and len(asked) > 1:
                yield Conflict(n, axis, tuple(asked.items()))
