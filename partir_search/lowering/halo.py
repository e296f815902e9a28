"""Halo exchange: reshard steps from tiles to the windows that an op reads.

An op may read a window of a dim beyond the device's tile: a convolution reads a halo, a reversed
dim the mirror image, a concatenation the elements of the device's tile of the result. Windows are
arithmetic in the tile's number (`InputWindow`), and determine source and target of every transfer.
Each permute sends one block; a `Halo` assembles the window from the own tile and received blocks.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Mapping, Sequence
from typing import TypedDict, TypeVar

import numpy as np

from partir_search.ir.boundaries import Run, runs
from partir_search.ir.partition import Layout, Partial, Window
from partir_search.ir.skewed_schedule import Edge
from partir_search.lowering.matching import maximum_matching
from partir_search.lowering.reshard_steps import (
    Halo,
    HaloGather,
    HaloPermute,
    Piece,
    ReshardStep,
    Span,
)

SidedEdge = tuple[int, int, int]  # source, target, side: 0 before the target's own tile, 1 after
Axis = TypeVar("Axis")
EMPTY: Span = (0, 0, 0)


class _StepFields(TypedDict):
    """Attributes shared by the steps of one window."""

    axes: tuple[int, ...]
    dim: int
    layout: Layout
    partial: Partial


@functools.lru_cache(maxsize=65536)
def window_steps(
    window: Window, extent: int, tiled: bool, layout: Layout, partial: Partial
) -> tuple[ReshardStep, ...]:
    """Steps from a tile of the window's dim to each device's window.

    Falls back to a gather of the dim if permutes send at least as many elements. Layouts of
    further dims and partial sums are kept.

    Args:
      extent: size of the whole dim.
      tiled: False if every device holds the whole dim.
      layout / partial: layout and partial sums of the value.
    """
    tiles = len(window.starts)
    tile = extent // tiles if tiled else extent
    ends: _StepFields = {
        "axes": window.axes,
        "dim": window.dim,
        "layout": layout,
        "partial": partial,
    }
    windows = [runs(s, window.size, extent, window.beyond) for s in window.starts]
    if not tiled:
        pieces = _pieces(0, [[(at, to, n) for to, at, n in found] for found in windows])
        return (_halo(pieces, window.size, False, ends),)
    if all(found == ((0, i * tile, tile),) for i, found in enumerate(windows)) and (
        window.size == tile
    ):
        return ()
    own, wanted = _demands(windows, tile)
    permutes, pieces = list[HaloPermute](), _pieces(0, own)
    ragged = False
    for group in _groups(wanted, tiles, window.beyond is not None):
        sent = [span for edge in group for span in wanted[edge]]
        start = min(at for at, _, _ in sent)
        length = max(at + n for at, _, n in sent) - start
        spans: list[list[Span]] = [[] for _ in range(tiles)]
        for edge in group:
            spans[edge[1]] = [(at - start, to, n) for at, to, n in wanted[edge]]
        ragged |= len({len(wanted[edge]) for edge in group}) > 1
        pairs = tuple((source, target) for source, target, _ in group)
        permutes.append(HaloPermute(pairs=pairs, start=start, length=length, **ends))
        pieces += _pieces(len(permutes), spans)
    gathered = (tiles - 1) * tile
    if sum(f.length for f in permutes) >= gathered + (len(permutes) == 1):
        whole = (*layout[: window.dim], (), *layout[window.dim + 1 :])
        gather = HaloGather(
            axes=window.axes, dim=window.dim, extent=extent, layout=whole, partial=partial
        )
        return (gather, *window_steps(window, extent, False, whole, partial))
    return (*permutes, _halo(pieces, window.size, ragged, ends))


def _pieces(block: int, spans: Sequence[Sequence[Span]]) -> list[Piece]:
    """Pieces of one block; piece k has the k-th largest span of each device.

    Args:
      block: number of the block, as in `Piece`.
      spans: spans of each device in the block; several if elements are read more than once.
    """
    ordered = [sorted(each, key=lambda t: (-t[2], t[1])) for each in spans]
    most = max(map(len, ordered), default=0)
    if most == 0:
        return [Piece(block, (EMPTY,) * len(spans))] if block == 0 else []
    return [
        Piece(block, tuple(each[k] if k < len(each) else EMPTY for each in ordered))
        for k in range(most)
    ]


def _demands(
    windows: Sequence[Sequence[Run]], tile: int
) -> tuple[list[list[Span]], dict[SidedEdge, list[Span]]]:
    """Spans of each device in the own tile, and in further tiles by (source, target, side).

    The side is 0 for a span before the device's own elements in the window, 1 for one after, and 0
    for a window without own elements.
    """
    own: list[list[Span]] = [[] for _ in windows]
    wanted: dict[SidedEdge, list[Span]] = {}
    for to, found in enumerate(windows):
        others: list[tuple[int, Span]] = []
        for at, start, length in found:
            for by in range(start // tile, (start + length - 1) // tile + 1):
                first, last = max(start, by * tile), min(start + length, (by + 1) * tile)
                span = (first - by * tile, at + first - start, last - first)
                if by == to:
                    own[to].append(span)
                else:
                    others.append((by, span))
        middle = max(own[to], key=lambda t: t[2], default=EMPTY)[1]
        for by, span in others:
            side = int(span[1] > middle) if own[to] else 0
            wanted.setdefault((by, to, side), []).append(span)
    return own, wanted


def _groups(
    wanted: Mapping[SidedEdge, Sequence[Span]], tiles: int, around: bool
) -> list[list[SidedEdge]]:
    """Edges in groups, one permute per group: each device sends and receives at most once.

    Args:
      around: True for a dim with neighbours around the ends; edges are grouped by side and by
        distance along the ring of tiles.
    """
    if not around:
        sides = {(source, target): side for source, target, side in wanted}
        return [[(s, t, sides[s, t]) for s, t in g] for g in _rounds(sorted(sides))]
    apart: dict[tuple[int, int], list[SidedEdge]] = collections.defaultdict(list)
    for source, target, side in sorted(wanted):
        apart[side, (source - target) % tiles].append((source, target, side))
    return [apart[key] for key in sorted(apart)]


def _rounds(edges: Sequence[Edge]) -> list[list[Edge]]:
    """Edges in groups, one permute per group: each device sends and receives at most once.

    Edges of equal distance form a group, for equal spans on all devices. If distances make more
    than twice the least number of groups, groups are maximum matchings instead.
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
    rounds, left = [], set(edges)
    while left:
        rounds.append(maximum_matching(left))
        left.difference_update(rounds[-1])
    return rounds


def _halo(pieces: Sequence[Piece], size: int, ragged: bool, ends: _StepFields) -> Halo:
    """`Halo` of the pieces, uniform if all devices read alike.

    Devices without a sender receive zeros, which no span covers.

    Args:
      ragged: True if a device reads less of a received block than another device.
    """
    used = tuple(p for p in pieces if any(t[2] for t in p.spans))
    alike: dict[tuple[int, int], list[Piece]] = {}
    for piece in used:
        taken = {t for t in piece.spans if t[2]}
        if ragged or len(taken) != 1:
            return Halo(pieces=used, size=size, uniform=False, **ends)
        alike.setdefault(taken.pop()[1:], []).append(piece)
    at = 0
    for (to, n), group in sorted(alike.items()):
        full = all(any(p.spans[i][2] for p in group) for i in range(len(group[0].spans)))
        sent = [p for p in group if p.block]
        if to != at or not (full or len(sent) == len(group) == 1):
            return Halo(pieces=used, size=size, uniform=False, **ends)
        at += n
    if at != size:
        return Halo(pieces=used, size=size, uniform=False, **ends)
    ordered: list[Piece] = []
    for _, group in sorted(alike.items()):
        if len(group) == 1:
            span = next(t for t in group[0].spans if t[2])
            group = [Piece(group[0].block, (span,) * len(group[0].spans))]
        ordered += group
    return Halo(pieces=tuple(ordered), size=size, uniform=True, **ends)


def keeps_tile(step: ReshardStep, tile: int) -> bool:
    """True if the result contains the own tile of every device, with received blocks beside."""
    if not isinstance(step, Halo):
        return False
    own = [p for p in step.pieces if p.block == 0 and p.spans[0][2] == tile]
    return step.uniform and len(own) == 1 and len(step.pieces) > 1


def shape_after(shape: Sequence[int], step: ReshardStep) -> tuple[int, ...]:
    """Local shape after a permute or a step of a window."""
    n = list(shape)
    if isinstance(step, HaloGather):
        n[step.dim] = step.extent
    elif isinstance(step, HaloPermute):
        n[step.dim] = step.length
    elif isinstance(step, Halo):
        n[step.dim] = step.size
    return tuple(n)


def crossed(pairs: Sequence[Edge], sizes: Mapping[Axis, int]) -> tuple[Axis, ...]:
    """Axes along which the ends of a pair differ.

    Args:
      pairs: (source, target), positions along the axes jointly.
      sizes: sizes of the axes, major to minor.
    """
    names, extents = list(sizes), list(sizes.values())
    ends = [np.array(np.unravel_index([p[i] for p in pairs], extents)) for i in (0, 1)]
    return tuple(a for a, row in zip(names, (ends[0] != ends[1]).any(1), strict=True) if row)
