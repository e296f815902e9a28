"""Legality on two mesh axes and their diagonal, a triple (row, column, diagonal) of axes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from partir_search.propagation.graph import Graph


def exceeds_diagonal(
    tiles: Sequence[array[int]], cls: int, triple: Sequence[int], axes: Sequence[int]
) -> bool:
    """True if tiles on `axes` would tile a class on all three axes of a triple."""
    return all(a in axes or tiles[a][cls] >= 0 for a in triple)


def may_loop(
    graph: Graph,
    loops: Sequence[array[int]],
    triples: Sequence[Sequence[int]],
    node: int,
    looped: tuple[int, int, int],
) -> bool:
    """True if a node may loop over three factors, or NONE, on one triple of axes.

    Two of the three may loop, or all three if the node supports a ring and is in no ring yet.

    Args:
      loops: [axes] rows of the state.
      triples: triples of the mesh besides this one.
      looped: factor per axis of the triple.
    """
    rule = graph.rules[graph.nodes[node].op]
    if looped[2] >= 0:  # halos: neighbours along an axis hold distant tiles of the diagonal
        read = {rule.operands[r.operand][r.dim] for r in rule.reads}
        if rule.manual or not read.isdisjoint(looped):
            return False
    in_ring = any(all(loops[a][node] >= 0 for a in t) for t in triples)
    return min(looped) < 0 or (not in_ring and graph.nodes[node].supports_ring(rule, looped))
