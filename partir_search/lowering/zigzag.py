"""Sequences cut into twice as many chunks as devices, device i with chunks i and 2 p - 1 - i.

Where no position looks at later ones, chunks at the end of a sequence have more to do than those
at its beginning; so every device has as much as any other (Brandon et al., arXiv 2311.09431).
Blocks go to these places and back by two permutes of half a block.
"""

from __future__ import annotations

import functools

from partir_search.ir.core import Op
from partir_search.lowering.halo import Fetch, Piece, Stretch
from partir_search.lowering.local_ir import Move
from partir_search.lowering.placing import Placer
from partir_search.lowering.reshard import WINDOW, Step
from partir_search.lowering.slots import Slot


def owner_of(chunk: int, devices: int) -> int:
    """The device that has a chunk."""
    return chunk if chunk < devices else 2 * devices - 1 - chunk


def to_zigzag(builder: Placer, slot: Slot, dim: int, axes: tuple[int, ...], op: Op) -> Slot:
    """A block's two chunks where they belong, the earlier one first."""
    half = slot.shape[dim] // 2
    even, odd = _fetches(builder.owner.partition.mesh.size(axes), half)
    halves = tuple(_permute(builder, slot, dim, axes, op, f) for f in (even, odd))
    step = _join(builder, slot, dim, axes, True)
    target = builder.owner.cache.stretched(slot, step)
    builder.steps.append(Move(step, slot, target, op, blocks=halves))
    return target


def from_zigzag(
    builder: Placer, slot: Slot, target: Slot, dim: int, axes: tuple[int, ...], op: Op
) -> None:
    """Two chunks back to where the block rests."""
    half = slot.shape[dim] // 2
    size = builder.owner.partition.mesh.size(axes)
    step = Step(WINDOW, axes, dim, -1, "", slot.layout, slot.pending, detail=_swapped(size, half))
    ordered = builder.owner.cache.stretched(slot, step)
    builder.steps.append(Move(step, slot, ordered, op))
    back = [_inverse(f) for f in _fetches(size, half)]
    halves = tuple(_permute(builder, ordered, dim, axes, op, f) for f in back)
    step = _join(builder, ordered, dim, axes, False)
    builder.steps.append(Move(step, ordered, target, op, blocks=halves))


def _permute(
    builder: Placer, slot: Slot, dim: int, axes: tuple[int, ...], op: Op, fetch: Fetch
) -> Slot:
    step = Step("collective_permute", axes, dim, -1, "", slot.layout, slot.pending, detail=fetch)
    target = builder.owner.cache.stretched(slot, step)
    builder.steps.append(Move(step, slot, target, op))
    return target


def _join(builder: Placer, slot: Slot, dim: int, axes: tuple[int, ...], swap: bool) -> Step:
    size = builder.owner.partition.mesh.size(axes)
    detail = _joined(size, slot.shape[dim] // 2, swap)
    return Step(WINDOW, axes, dim, -1, "", slot.layout, slot.pending, detail=detail)


@functools.cache
def _fetches(devices: int, half: int) -> tuple[Fetch, Fetch]:
    """Even and odd chunks from where they rest to their places."""
    even, odd = (
        Fetch(tuple((i, owner_of(2 * i + k, devices)) for i in range(devices)), k * half, half)
        for k in (0, 1)
    )
    return even, odd


def _inverse(fetch: Fetch) -> Fetch:
    return Fetch(tuple(sorted((t, s) for s, t in fetch.pairs)), fetch.start, fetch.length)


@functools.cache
def _joined(devices: int, half: int, swap: bool) -> Stretch:
    """The even chunk and the odd one, side by side; `swap` puts the earlier one first."""
    first = [bool(swap and i % 2) for i in range(devices)]
    pieces = [Piece(1 + k, tuple((0, half * (k != odd), half) for odd in first)) for k in (0, 1)]
    return Stretch(tuple(pieces), 2 * half, not swap)


@functools.cache
def _swapped(devices: int, half: int) -> Stretch:
    """The even chunk first, from the earlier one first."""
    pieces = []
    for k in (0, 1):
        takes = tuple((half * k, half * (k != i % 2), half) for i in range(devices))
        pieces.append(Piece(0, takes))
    return Stretch(tuple(pieces), 2 * half, False)
