"""Zigzag order of a sequence in 2 p chunks on p devices: device i has chunks i and 2 p - 1 - i.

Under a causal mask, chunks late in a sequence attend to more keys than early chunks; in zigzag
order all devices compute equally much (Brandon et al., arXiv 2311.09431). Two permutes of half a
block lead from the order of the sequence to zigzag order, and two lead back.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from partir_search.ir.core import Op
from partir_search.ir.skewed_schedule import Edge
from partir_search.lowering.local_ir import Reshard
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.reshard_builder import ReshardBuilder
from partir_search.lowering.reshard_steps import Halo, HaloPermute, Piece


def owner_of(chunk: int, devices: int) -> int:
    """Device of a chunk in zigzag order."""
    return chunk if chunk < devices else 2 * devices - 1 - chunk


def to_zigzag(
    builder: ReshardBuilder, local: LocalValue, dim: int, axes: tuple[int, ...], op: Op
) -> LocalValue:
    """Appends the steps to zigzag order: a block is two chunks, the earlier one first."""
    pairs = _pairs(builder.owner.partition.mesh.size(axes))
    halves = _halves(builder, local, dim, axes, op, pairs)
    step = _join(builder, local, dim, axes, True)
    target = builder.owner.cache.after_step(local, step)
    builder.steps.append(Reshard(step, local, target, op, received=halves))
    return target


def from_zigzag(
    builder: ReshardBuilder,
    local: LocalValue,
    target: LocalValue,
    dim: int,
    axes: tuple[int, ...],
    op: Op,
) -> None:
    """Appends the steps from zigzag order to `target`, in the order of the sequence."""
    half = local.shape[dim] // 2
    size = builder.owner.partition.mesh.size(axes)
    swapped = Halo(
        axes=axes,
        dim=dim,
        layout=local.layout,
        partial=local.partial,
        pieces=_swapped(size, half),
        size=2 * half,
        uniform=False,
    )
    ordered = builder.owner.cache.after_step(local, swapped)
    builder.steps.append(Reshard(swapped, local, ordered, op))
    back = [tuple(sorted((t, s) for s, t in pairs)) for pairs in _pairs(size)]
    halves = _halves(builder, ordered, dim, axes, op, back)
    step = _join(builder, ordered, dim, axes, False)
    builder.steps.append(Reshard(step, ordered, target, op, received=halves))


def _halves(
    builder: ReshardBuilder,
    local: LocalValue,
    dim: int,
    axes: tuple[int, ...],
    op: Op,
    pairs: Sequence[tuple[Edge, ...]],
) -> tuple[LocalValue, ...]:
    """Appends the permutes of a block's two halves; `pairs` per half."""
    half = local.shape[dim] // 2
    sent = []
    for k, each in enumerate(pairs):
        step = HaloPermute(
            axes=axes,
            dim=dim,
            layout=local.layout,
            partial=local.partial,
            pairs=each,
            start=k * half,
            length=half,
        )
        sent.append(builder.owner.cache.after_step(local, step))
        builder.steps.append(Reshard(step, local, sent[-1], op))
    return tuple(sent)


def _join(
    builder: ReshardBuilder, local: LocalValue, dim: int, axes: tuple[int, ...], swap: bool
) -> Halo:
    size, half = builder.owner.partition.mesh.size(axes), local.shape[dim] // 2
    return Halo(
        axes=axes,
        dim=dim,
        layout=local.layout,
        partial=local.partial,
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
    """Even chunk, then odd chunk; with `swap` the earlier of the two first."""
    first = [bool(swap and i % 2) for i in range(devices)]
    return tuple(Piece(1 + k, tuple((0, half * (k != odd), half) for odd in first)) for k in (0, 1))


@functools.cache
def _swapped(devices: int, half: int) -> tuple[Piece, ...]:
    """Moves the even chunk to the front of a block in zigzag order."""
    return tuple(
        Piece(0, tuple((half * k, half * (k != i % 2), half) for i in range(devices)))
        for k in (0, 1)
    )
