"""Windows of a tiled dim: the elements that each device reads besides its own tile, and who sends
them.

An op may read other elements of a dim than the device's tile: a convolution a halo, a reversed dim
the mirror image, a concatenation a part of each operand. Windows are arithmetic in the number of
the tile (`InputWindow`), and the senders follow from the windows. Each permute brings one block; a
`Halo` joins the own tile and all blocks.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Mapping, Sequence
from typing import TypedDict, TypeVar

import numpy as np

from partir_search.ir.boundaries import Run, runs
from partir_search.ir.partition import Layout, Pending, Window
from partir_search.ir.skewed_schedule import Edge
from partir_search.lowering.reshard_steps import (
    Halo,
    HaloGather,
    HaloPermute,
    Piece,
    ReshardStep,
    Take,
)

Sided = tuple[int, int, int]  # source, target, side of the target's own part
Axis = TypeVar("Axis")
NOTHING: Take = (0, 0, 0)


class _Ends(TypedDict):
    """Attributes shared by the steps of one window."""

    axes: tuple[int, ...]
    dim: int
    layout: Layout
    pending: Pending


@functools.lru_cache(maxsize=65536)
def window_steps(
    window: Window, extent: int, tiled: bool, layout: Layout, pending: Pending
) -> tuple[ReshardStep, ...]:
    """Steps from a tile (or from all `extent` elements) of the window's dim to each device's
    window.

    Layout and partial sums of the value stay, but for the window's dim.
    """
    tiles = len(window.starts)
    tile = extent // tiles if tiled else extent
    ends: _Ends = {"axes": window.axes, "dim": window.dim, "layout": layout, "pending": pending}
    stretches = [runs(s, window.size, extent, window.beyond) for s in window.starts]
    if not tiled:
        pieces = _pieces(0, [[(at, to, n) for to, at, n in found] for found in stretches])
        return (_halo(pieces, window.size, False, ends),)
    if all(found == ((0, i * tile, tile),) for i, found in enumerate(stretches)) and (
        window.size == tile
    ):
        return ()
    own, wanted = _demands(stretches, tile)
    fetches, pieces = list[HaloPermute](), _pieces(0, own)
    ragged = False
    for group in _groups(wanted, tiles, window.beyond is not None):
        parts = [take for edge in group for take in wanted[edge]]
        start = min(at for at, _, _ in parts)
        length = max(at + n for at, _, n in parts) - start
        takes: list[list[Take]] = [[] for _ in range(tiles)]
        for edge in group:
            takes[edge[1]] = [(at - start, to, n) for at, to, n in wanted[edge]]
        ragged |= len({len(wanted[edge]) for edge in group}) > 1
        pairs = tuple((source, target) for source, target, _ in group)
        fetches.append(HaloPermute(pairs=pairs, start=start, length=length, **ends))
        pieces += _pieces(len(fetches), takes)
    rest = (tiles - 1) * tile
    if sum(f.length for f in fetches) >= rest + (len(fetches) == 1):  # no less than all there is
        whole = (*layout[: window.dim], (), *layout[window.dim + 1 :])
        gather = HaloGather(
            axes=window.axes, dim=window.dim, extent=extent, layout=whole, pending=pending
        )
        return (gather, *window_steps(window, extent, False, whole, pending))
    return (*fetches, _halo(pieces, window.size, ragged, ends))


def _pieces(block: int, takes: Sequence[Sequence[Take]]) -> list[Piece]:
    """Pieces of one block: per device its takes, the largest first.

    Several takes of one device are several pieces.
    """
    ordered = [sorted(each, key=lambda t: (-t[2], t[1])) for each in takes]
    most = max(map(len, ordered), default=0)
    if most == 0:
        return [Piece(block, (NOTHING,) * len(takes))] if block == 0 else []
    return [
        Piece(block, tuple(each[k] if k < len(each) else NOTHING for each in ordered))
        for k in range(most)
    ]


def _demands(
    stretches: Sequence[Sequence[Run]], tile: int
) -> tuple[list[list[Take]], dict[Sided, list[Take]]]:
    """Takes of each device from its own tile, and from further tiles by (source, target, side):
    side 0 is before the device's own elements, 1 after.
    """
    own: list[list[Take]] = [[] for _ in stretches]
    wanted: dict[Sided, list[Take]] = {}
    for to, found in enumerate(stretches):
        others: list[tuple[int, Take]] = []
        for at, start, length in found:
            for by in range(start // tile, (start + length - 1) // tile + 1):
                first, last = max(start, by * tile), min(start + length, (by + 1) * tile)
                take = (first - by * tile, at + first - start, last - first)
                if by == to:
                    own[to].append(take)
                else:
                    others.append((by, take))
        middle = max(own[to], key=lambda t: t[2], default=NOTHING)[1]
        for by, take in others:
            side = int(take[1] > middle) if own[to] else int(by > to)
            wanted.setdefault((by, to, side), []).append(take)
    return own, wanted


def _groups(wanted: Mapping[Sided, Sequence[Take]], tiles: int, around: bool) -> list[list[Sided]]:
    """Edges in groups, in each of which no device sends or receives twice. Edges of a dim with
    neighbours `around` its ends go together by side and by distance along the ring.
    """
    if not around:
        sides = {(source, target): side for source, target, side in wanted}
        return [[(s, t, sides[s, t]) for s, t in g] for g in _rounds(sorted(sides), tiles)]
    apart: dict[tuple[int, int], list[Sided]] = collections.defaultdict(list)
    for source, target, side in sorted(wanted):
        apart[side, (source - target) % tiles].append((source, target, side))
    return [apart[key] for key in sorted(apart)]


def _rounds(edges: Sequence[Edge], tiles: int) -> list[list[Edge]]:
    """Edges in groups, in each of which no device sends or receives twice.

    Edges between equally distant devices go together, and all take alike. If this makes many
    groups, a group takes as many edges as possible.
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
    from scipy.sparse import csr_array  # slow to import, and rarely needed
    from scipy.sparse.csgraph import maximum_bipartite_matching

    rounds = []
    left = set(edges)
    while left:
        rows, columns = np.array(sorted(left)).T
        graph = csr_array((np.ones(len(rows)), (rows, columns)), shape=(tiles, tiles))
        match = maximum_bipartite_matching(graph, perm_type="column").tolist()
        rounds.append([(s, t) for s, t in enumerate(match) if t >= 0])
        left.difference_update(rounds[-1])
    return rounds


def _halo(pieces: Sequence[Piece], size: int, ragged: bool, ends: _Ends) -> Halo:
    """A halo'd tile of the pieces that some device takes; zeros arrive from devices that send
    nothing.

    Args:
      ragged: some device takes fewer of the elements it receives than its neighbours do.
    """
    used = tuple(p for p in pieces if any(t[2] for t in p.takes))
    alike: dict[tuple[int, int], list[Piece]] = {}
    for piece in used:
        taken = {t for t in piece.takes if t[2]}
        if ragged or len(taken) != 1:
            return Halo(pieces=used, size=size, uniform=False, **ends)
        alike.setdefault(taken.pop()[1:], []).append(piece)
    at = 0
    for (to, n), group in sorted(alike.items()):
        full = all(any(p.takes[i][2] for p in group) for i in range(len(group[0].takes)))
        sent = [p for p in group if p.block]
        if to != at or not (full or len(sent) == len(group) == 1):
            return Halo(pieces=used, size=size, uniform=False, **ends)
        at += n
    if at != size:
        return Halo(pieces=used, size=size, uniform=False, **ends)
    ordered: list[Piece] = []
    for _, group in sorted(alike.items()):
        if len(group) == 1:
            take = next(t for t in group[0].takes if t[2])
            group = [Piece(group[0].block, (take,) * len(group[0].takes))]
        ordered += group
    return Halo(pieces=tuple(ordered), size=size, uniform=True, **ends)


def keeps_tile(step: ReshardStep, tile: int) -> bool:
    """True if a halo'd tile holds all of every device's own tile, and received blocks beside it."""
    if not isinstance(step, Halo):
        return False
    own = [p for p in step.pieces if p.block == 0 and p.takes[0][2] == tile]
    return step.uniform and len(own) == 1 and len(step.pieces) > 1


def shape_after(shape: Sequence[int], step: ReshardStep) -> tuple[int, ...]:
    """The local shape after a step without a change of layout: a permute, or a step of a window."""
    n = list(shape)
    if isinstance(step, HaloGather):
        n[step.dim] = step.extent
    elif isinstance(step, HaloPermute):
        n[step.dim] = step.length
    elif isinstance(step, Halo):
        n[step.dim] = step.size
    return tuple(n)


def crossed(pairs: Sequence[Edge], sizes: Mapping[Axis, int]) -> tuple[Axis, ...]:
    """The axes along which some pair differs; `sizes` by axis, major to minor."""
    names, extents = list(sizes), list(sizes.values())
    ends = [np.array(np.unravel_index([p[i] for p in pairs], extents)) for i in (0, 1)]
    return tuple(a for a, row in zip(names, (ends[0] != ends[1]).any(1), strict=True) if row)
