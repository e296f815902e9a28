"""Sequences in twice as many chunks as devices: device i holds chunks i and 2 p - 1 - i.

Under a causal mask, chunks at the end of a sequence have more work than chunks at the start; each
device holds one of both kinds, and all have equal work (Brandon et al., arXiv 2311.09431). Two
permutes of half a block bring blocks to zigzag order, two bring them back.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from partir_search.ir.core import Op
from partir_search.ir.skewed_schedule import Edge
from partir_search.lowering.local_ir import Reshard
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.placing import Placer
from partir_search.lowering.reshard_steps import Halo, HaloPermute, Piece


def owner_of(chunk: int, devices: int) -> int:
    """The device of a chunk."""
    return chunk if chunk < devices else 2 * devices - 1 - chunk


def to_zigzag(
    builder: Placer, local: LocalValue, dim: int, axes: tuple[int, ...], op: Op
) -> LocalValue:
    """A block's two chunks in zigzag order, the earlier one first."""
    pairs = _pairs(builder.owner.partition.mesh.size(axes))
    halves = _halves(builder, local, dim, axes, op, pairs)
    step = _join(builder, local, dim, axes, True)
    target = builder.owner.cache.after(local, step)
    builder.steps.append(Reshard(step, local, target, op, received=halves))
    return target


def from_zigzag(
    builder: Placer, local: LocalValue, target: LocalValue, dim: int, axes: tuple[int, ...], op: Op
) -> None:
    """A block's two chunks back in the order of the sequence."""
    half = local.shape[dim] // 2
    size = builder.owner.partition.mesh.size(axes)
    swapped = Halo(
        axes=axes,
        dim=dim,
        layout=local.layout,
        pending=local.pending,
        pieces=_swapped(size, half),
        size=2 * half,
        uniform=False,
    )
    ordered = builder.owner.cache.after(local, swapped)
    builder.steps.append(Reshard(swapped, local, ordered, op))
    back = [tuple(sorted((t, s) for s, t in pairs)) for pairs in _pairs(size)]
    halves = _halves(builder, ordered, dim, axes, op, back)
    step = _join(builder, ordered, dim, axes, False)
    builder.steps.append(Reshard(step, ordered, target, op, received=halves))


def _halves(
    builder: Placer,
    local: LocalValue,
    dim: int,
    axes: tuple[int, ...],
    op: Op,
    pairs: Sequence[tuple[Edge, ...]],
) -> tuple[LocalValue, ...]:
    """The two halves of a block, each sent along its pairs."""
    half = local.shape[dim] // 2
    sent = []
    for k, each in enumerate(pairs):
        step = HaloPermute(
            axes=axes,
            dim=dim,
            layout=local.layout,
            pending=local.pending,
            pairs=each,
            start=k * half,
            length=half,
        )
        sent.append(builder.owner.cache.after(local, step))
        builder.steps.append(Reshard(step, local, sent[-1], op))
    return tuple(sent)


def _join(builder: Placer, local: LocalValue, dim: int, axes: tuple[int, ...], swap: bool) -> Halo:
    size, half = builder.owner.partition.mesh.size(axes), local.shape[dim] // 2
    return Halo(
        axes=axes,
        dim=dim,
        layout=local.layout,
        pending=local.pending,
        pieces=_joined(size, half, swap),
        size=2 * half,
        uniform=not swap,
    )


@functools.cache
def _pairs(devices: int) -> tuple[tuple[Edge, ...], tuple[Edge, ...]]:
    """(source, target) of even chunks and of odd chunks, from home to zigzag order."""
    even, odd = (tuple((i, owner_of(2 * i + k, devices)) for i in range(devices)) for k in (0, 1))
    return even, odd


@functools.cache
def _joined(devices: int, half: int, swap: bool) -> tuple[Piece, ...]:
    """The even chunk and the odd one, side by side; `swap` puts the earlier one first."""
    first = [bool(swap and i % 2) for i in range(devices)]
    return tuple(Piece(1 + k, tuple((0, half * (k != odd), half) for odd in first)) for k in (0, 1))


@functools.cache
def _swapped(devices: int, half: int) -> tuple[Piece, ...]:
    """The even chunk first, from the earlier one first."""
    return tuple(
        Piece(0, tuple((half * k, half * (k != i % 2), half) for i in range(devices)))
        for k in (0, 1)
    )
