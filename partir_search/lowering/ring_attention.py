"""Ring attention (Liu et al., arXiv 2310.01889): a blockwise op, one block of a factor per turn.

Blocks of keys and values move from neighbour to neighbour along a mesh axis; no all_gather is
needed. Gradients of keys and values are summed while they move with the blocks; no reduce_scatter
is needed, as a last permute returns the sum of a block to the block's owner.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from partir_search.ir.blockwise import Blockwise
from partir_search.ir.core import Op
from partir_search.ir.partition import Layout
from partir_search.lowering.cache import OpPlan
from partir_search.lowering.diagonals import permute_blocks, redistribute
from partir_search.lowering.local_ir import (
    AttentionTurn,
    ChunkedOp,
    LocalOp,
    Reshard,
    RingReshard,
)
from partir_search.lowering.local_value import LocalValue, Source
from partir_search.lowering.reshard_builder import ReshardBuilder
from partir_search.lowering.reshard_steps import AllGather, ReshardStep
from partir_search.lowering.zigzag import from_zigzag, to_zigzag


@dataclasses.dataclass(frozen=True, slots=True)
class _AttentionRing:
    """Attributes common to the turns of a blockwise op; see `AttentionTurn`.

    Attributes:
      returning: positions of results summed while they move with the blocks.
    """

    axes: tuple[int, ...]
    size: int
    moving: tuple[int, ...]
    returning: tuple[int, ...]
    zigzag: bool
    chunks: int


def lower_ring_attention(builder: ReshardBuilder, op: Op, plan: OpPlan) -> bool:
    """Lowers a blockwise op to a ring along an axis of `Modes.windowed_einsums`.

    False if no operand is gathered along one of the axes.
    """
    owner = builder.owner
    partition = owner.partition
    blockwise = partition.rules[op.id].blockwise
    if blockwise is None:
        return False
    mesh, rule = partition.mesh, partition.rules[op.id]
    gathers: dict[tuple[int, ...], dict[int, tuple[ReshardStep, ...]]] = {}
    for i in blockwise.passing:
        x = plan.local_op.ins[i]
        if i in plan.moved and isinstance(x, LocalValue):
            steps = redistribute(mesh, x.layout, x.partial, plan.needs[i], x.partial)
            last = steps[-1] if steps else None
            dim = rule.operands[i].index(blockwise.factor)
            if isinstance(last, AllGather) and last.dim == dim and mesh.size(last.axes) > 1:
                gathers.setdefault(last.axes, {})[i] = steps
    looped = {a for a, rows in enumerate(partition.axes) if rows.loops[op.id] >= 0}
    axes = next(
        (a for a in sorted(gathers) if looped & set(partition.modes.windowed_einsums) >= set(a)),
        None,
    )
    if axes is None:
        return False
    ins = list(plan.local_op.ins)
    for i in plan.moved:
        if i in gathers[axes]:
            local = ins[i]
            assert isinstance(local, LocalValue)
            for step in gathers[axes][i][:-1]:
                target = owner.local(local.value, step.layout, step.partial)
                builder.steps.append(Reshard(step, local, target, op))
                local = target
            ins[i] = local
        else:
            ins[i] = builder.reshard_operand(op.operands[i], plan.needs[i], op)
    moving = tuple(i for i in blockwise.passing if i in gathers[axes])
    outs = tuple(
        _block(builder, out, rule.results[r].index(blockwise.factor), axes)
        if r in blockwise.returning
        else out
        for r, out in enumerate(plan.local_op.outs)
    )
    size = mesh.size(axes)
    zigzag = partition.is_zigzag(op, axes)
    chunks = _chunks(builder, op, blockwise, 2 * size if zigzag else size)
    ring = _AttentionRing(axes, size, moving, blockwise.returning, zigzag, chunks)
    if zigzag:
        for i, x in enumerate(ins):
            tiled = blockwise.factor if i in moving else blockwise.along
            if isinstance(x, LocalValue) and tiled in rule.operands[i]:
                ins[i] = to_zigzag(builder, x, rule.operands[i].index(tiled), axes, op)
        blocks = tuple(builder.owner.cache.partial_block(out, 0) for out in outs)
        _turns(builder, op, ins, blocks, ring)
        for r, (out, local, labels) in enumerate(zip(outs, blocks, rule.results, strict=True)):
            tiled = blockwise.factor if r in blockwise.returning else blockwise.along
            if tiled in labels:
                from_zigzag(builder, local, out, labels.index(tiled), axes, op)
    else:
        _turns(builder, op, ins, outs, ring)
    builder.reshard_results(outs, op)
    return True


def lower_unsharded(builder: ReshardBuilder, local_op: LocalOp) -> LocalOp:
    """The op itself, or a `ChunkedOp` if a blockwise op's scratch exceeds the target's limit."""
    blockwise = builder.owner.partition.rules[local_op.op.id].blockwise
    chunks = _chunks(builder, local_op.op, blockwise, 1) if blockwise else 1
    if chunks == 1:
        return local_op
    return ChunkedOp(local_op.op, local_op.ins, local_op.outs, local_op.regions, chunks=chunks)


def _chunks(builder: ReshardBuilder, op: Op, blockwise: Blockwise, blocks: int) -> int:
    """Number of chunks per block for scratch within `LoweringTraits.attention_scratch_bytes`."""
    partition = builder.owner.partition
    sizes = partition.rules[op.id].sizes
    tiles = math.prod(partition.tiles_of(op, f) for f in blockwise.scratch_factors)
    points = math.prod(sizes[f] for f in blockwise.scratch_factors) // (tiles * blocks)
    length, chunks = sizes[blockwise.factor] // blocks, 1
    most = builder.owner.cache.traits.attention_scratch_bytes
    while blockwise.scratch * points > chunks * most and length % (2 * chunks) == 0:
        chunks *= 2
    return chunks


def _block(builder: ReshardBuilder, out: LocalValue, dim: int, axes: tuple[int, ...]) -> LocalValue:
    """Returning result tiled along the ring: one block per device, without partial sums."""
    layout: Layout = tuple(
        (*tiling, *axes) if d == dim else tiling for d, tiling in enumerate(out.layout)
    )
    partial = tuple(p for p in out.partial if p[0] not in axes)
    return builder.owner.local(out.value, layout, partial)


def _turns(
    builder: ReshardBuilder,
    op: Op,
    ins: Sequence[Source],
    outs: tuple[LocalValue, ...],
    ring: _AttentionRing,
) -> None:
    """Appends the turns of a ring and the permutes between the turns."""
    cache, size = builder.owner.cache, ring.size
    pairs = tuple(((i + 1) % size, i) for i in range(size))
    operands = list(ins)
    sums: dict[int, LocalValue] = {}
    for turn in range(size):
        following = list(operands)
        for i in ring.moving if turn + 1 < size else ():
            local = operands[i]
            assert isinstance(local, LocalValue)
            step = permute_blocks(ring.axes, pairs, local.layout, local.partial)
            following[i] = after = cache.after_step(local, step)
            builder.permute_block(step, local, after, op, turn + 1)
        arrived: list[LocalValue] = []
        for r in ring.returning if turn else ():
            step = permute_blocks(ring.axes, pairs, outs[r].layout, outs[r].partial)
            target = cache.after_step(sums[r], step)
            builder.steps.append(RingReshard(step, sums[r], target, op, turn=turn))
            arrived.append(target)
        blocks = tuple(
            cache.partial_block(out, turn + 1) if r in ring.returning else out
            for r, out in enumerate(outs)
        )
        sums = {r: blocks[r] for r in ring.returning}
        builder.steps.append(
            AttentionTurn(
                op,
                tuple(operands),
                blocks,
                turn=turn,
                turns=size,
                axes=ring.axes,
                offset=turn,
                moving=ring.moving,
                zigzag=ring.zigzag,
                chunks=ring.chunks,
                arrived=tuple(arrived),
            )
        )
        operands = following
    for r in ring.returning:
        step = permute_blocks(ring.axes, pairs, outs[r].layout, outs[r].partial)
        builder.steps.append(Reshard(step, sums[r], outs[r], op))
