"""Residuals of the fewest bytes from which backward layers repeat forward ops."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Set
from typing import Union

from partir_search.ir.core import Op
from partir_search.passes.roll.layers import Carried, Inner, Layers
from partir_search.passes.roll.min_cut import min_node_cut

Made = tuple[int, int]  # offset of an op, number of the result
Place = Union[Made, Carried]


@dataclasses.dataclass(frozen=True, slots=True)
class Residuals:
    """Values stored for the backward layers, and the ops that make all others again.

    Attributes:
      repeated: offsets of forward ops to repeat.
      stored: places of the values.
      nbytes: of the values, of one layer.
    """

    repeated: frozenset[int]
    stored: frozenset[Place]
    nbytes: int


def least_residuals(
    forward: Layers,
    needed: Set[Made],
    cheap: Callable[[Op], bool],
    further: Collection[int] = (),
    rows: Collection[int] = (),
) -> Residuals:
    """Residuals of the fewest bytes.

    Args:
      needed: places read by the backward layers.
      cheap: function from an op to True if the op may run again.
      further: offsets of further ops that may run again.
      rows: offsets of ops whose results are stored before other values of as many bytes.
    """
    cost: dict[Place, int] = {}
    edges: list[tuple[Place, Place]] = []
    sources: set[Place] = set()
    for offset, op in enumerate(forward.first):
        for r, value in enumerate(op.results):
            cost[offset, r] = 2 * value.type.nbytes - (offset in rows)
            if not (cheap(op) or offset in further):
                sources.add((offset, r))
                continue
            for source in forward.sources[offset]:
                if isinstance(source, Inner):
                    edges.append(((source.offset, source.result), (offset, r)))
                elif isinstance(source, Carried):
                    cost[source] = 2 * source.initial.type.nbytes
                    sources.add(source)
                    edges.append((source, (offset, r)))
    stored = min_node_cut(cost, edges, sources, set[Place](needed))
    repeated: set[int] = set()
    todo = list(needed - stored)
    while todo:
        offset, _ = todo.pop()
        if offset not in repeated:
            repeated.add(offset)
            inner = (s for s in forward.sources[offset] if isinstance(s, Inner))
            todo += [(s.offset, s.result) for s in inner if (s.offset, s.result) not in stored]
    nbytes = sum(-(-cost[place] // 2) for place in stored)
    return Residuals(frozenset(repeated), frozenset(stored), nbytes)
