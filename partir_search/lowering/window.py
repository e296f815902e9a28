"""Stretches of a tiled dim: what each device needs besides its own tile, and who sends it.

An op may read of a dim another stretch than the tile that its device holds: a convolution its
halo, a reversed dim the mirror image, a concatenation what falls into its part of the result. The
stretches are arithmetic in the tile's number (`ir.rule.Reads`); who sends what to whom follows
from them. Each permute brings one block; the stretch is put together from the device's own tile
and all blocks.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from partir_search.ir.partition import Layout, Pending, Window
from partir_search.ir.ring import Edge
from partir_search.lowering.reshard import WINDOW, Step

Take = tuple[int, int, int]  # from, to, length
Axis = TypeVar("Axis")
NOTHING: Take = (0, 0, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Fetch:
    """One permute: so many elements of the own tile from `start` on.

    Attributes:
      pairs: (source, target), positions along the step's axes jointly.
    """

    pairs: tuple[Edge, ...]
    start: int
    length: int


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """What a stretch takes of one block.

    Attributes:
      block: 0 is the own tile (or the whole), others follow as they are fetched.
      takes: per device (from, to, length), from the block to the stretch, or `NOTHING`.
    """

    block: int
    takes: tuple[Take, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Stretch:
    """Puts a stretch of `size` elements together; zeros where no piece goes.

    Attributes:
      uniform: all devices take alike, and the pieces, which are in order, fill the stretch.
    """

    pieces: tuple[Piece, ...]
    size: int
    uniform: bool


@functools.lru_cache(maxsize=65536)
def window_steps(
    window: Window, extent: int, tiled: bool, layout: Layout, pending: Pending
) -> tuple[Step, ...]:
    """Steps from a tile (or the whole, of `extent`) of the window's dim to each device's stretch.

    Layout and pending sums of the value stay what they were, but for the stretched dim.
    """
    tiles = len(window.starts)
    tile = extent // tiles if tiled else extent
    make = functools.partial(
        Step, dim=window.dim, to_dim=-1, monoid="", layout=layout, pending=pending
    )
    if not tiled:
        piece = Piece(0, tuple(_overlap(s, window.size, 0, extent) for s in window.starts))
        return (make(WINDOW, window.axes, detail=_stretch([piece], window.size)),)
    if all(s == i * tile for i, s in enumerate(window.starts)) and window.size == tile:
        return ()
    own, wanted = _demands(window, tile)
    fetches, pieces = [], [Piece(0, own)]
    for group in _rounds(sorted(wanted), tiles):
        start = min(wanted[e][0] for e in group)
        length = max(wanted[e][0] + wanted[e][2] for e in group) - start
        taken = {e[1]: (wanted[e][0] - start, *wanted[e][1:]) for e in group}
        takes = tuple(taken.get(i, NOTHING) for i in range(tiles))
        fetches.append(Fetch(tuple(group), start, length))
        pieces.append(Piece(len(fetches), takes))
    rest = (tiles - 1) * tile
    if sum(f.length for f in fetches) >= rest + (len(fetches) == 1):  # no less than all there is
        whole = (*layout[: window.dim], (), *layout[window.dim + 1 :])
        gather = Step("all_gather", window.axes, window.dim, -1, "", whole, pending, extent)
        return (gather, *window_steps(window, extent, False, whole, pending))
    return (
        *(make("collective_permute", window.axes, detail=f) for f in fetches),
        make(WINDOW, window.axes, detail=_stretch(pieces, window.size)),
    )


def _overlap(start: int, size: int, low: int, high: int) -> Take:
    """(offset in [low, high), offset in the stretch, length) of what both have."""
    first, last = max(start, low), min(start + size, high)
    return (first - low, first - start, last - first) if first < last else NOTHING


def _demands(window: Window, tile: int) -> tuple[tuple[Take, ...], dict[Edge, Take]]:
    """What each device takes of its own tile, and of others' by (source, target)."""
    tiles = len(window.starts)
    own = []
    wanted = {}
    for to, start in enumerate(window.starts):
        own.append(_overlap(start, window.size, to * tile, (to + 1) * tile))
        for by in range(max(0, start // tile), min(tiles, -(-(start + window.size) // tile))):
            if by != to:
                wanted[by, to] = _overlap(start, window.size, by * tile, (by + 1) * tile)
    return tuple(own), wanted


def _rounds(edges: Sequence[Edge], tiles: int) -> list[list[Edge]]:
    """Edges in groups in which nobody sends or receives twice.

    Those between equally distant devices go together, so that all take alike; where that makes
    many groups, as many as possible do.
    """
    if not edges:
        return []
    apart: dict[int, list[Edge]] = collections.defaultdict(list)
    for source, target in edges:
        apart[source - target].append((source, target))
    sends = collections.Counter(s for s, _ in edges)
    receives = collections.Counter(t for _, t in edges)
    if len(apart) <= 2 * max(*sends.values(), *receives.values()):
        return [apart[d] for d in sorted(apart)]
    rounds = []
    left = set(edges)
    while left:
        rows, columns = np.array(sorted(left)).T
        graph = csr_array((np.ones(len(rows)), (rows, columns)), shape=(tiles, tiles))
        match = maximum_bipartite_matching(graph, perm_type="column").tolist()
        rounds.append([(s, t) for s, t in enumerate(match) if t >= 0])
        left.difference_update(rounds[-1])
    return rounds


def _stretch(pieces: Sequence[Piece], size: int) -> Stretch:
    """Nobody takes what it does not get: zeros arrive where nobody sends."""
    alike = []
    for piece in pieces:
        taken = {t for t in piece.takes if t[2]}
        if len(taken) == 1:
            take = taken.pop()
            alike.append(dataclasses.replace(piece, takes=(take,) * len(piece.takes)))
    alike.sort(key=lambda p: p.takes[0][1])
    at = 0
    for piece in alike:
        if piece.takes[0][1] != at:
            break
        at += piece.takes[0][2]
    received = all(p.block or all(t[2] for t in p.takes) for p in pieces)
    if at == size and len(alike) == sum(any(t[2] for t in p.takes) for p in pieces) and received:
        return Stretch(tuple(alike), size, True)
    return Stretch(tuple(p for p in pieces if any(t[2] for t in p.takes)), size, False)


def stretched(shape: Sequence[int], step: Step) -> tuple[int, ...]:
    """A local shape after one of the steps of a window."""
    n = list(shape)
    if step.kind == "all_gather":
        n[step.dim] = step.detail
    if isinstance(step.detail, Fetch):
        n[step.dim] = step.detail.length
    elif isinstance(step.detail, Stretch):
        n[step.dim] = step.detail.size
    return tuple(n)


def crossed(pairs: Sequence[Edge], sizes: Mapping[Axis, int]) -> tuple[Axis, ...]:
    """The axes along which some pair differs; `sizes` of the joint axes, major to minor."""
    names, extents = list(sizes), list(sizes.values())
    ends = [np.array(np.unravel_index([p[i] for p in pairs], extents)) for i in (0, 1)]
    return tuple(a for a, row in zip(names, (ends[0] != ends[1]).any(1), strict=True) if row)
