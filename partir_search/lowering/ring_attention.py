"""Ring attention (Liu et al., arXiv 2310.01889): a blockwise op, one block of a factor per turn.

Keys and values go from neighbour to neighbour along a mesh axis instead of being gathered. Their
gradients go with the blocks instead of being scattered: the sum of a block ends at the block's
owner after one more permute.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from partir_search.ir.blockwise import Blockwise
from partir_search.ir.core import Op
from partir_search.ir.partition import Layout
from partir_search.lowering.cache import OpPlan
from partir_search.lowering.diagonals import redistribute, shuffle
from partir_search.lowering.local_ir import (
    AttentionTurn,
    ChunkedOp,
    LocalOp,
    Reshard,
    RingReshard,
)
from partir_search.lowering.local_value import LocalValue, Source
from partir_search.lowering.placing import Placer
from partir_search.lowering.reshard_steps import AllGather, ReshardStep
from partir_search.lowering.zigzag import from_zigzag, to_zigzag


@dataclasses.dataclass(frozen=True, slots=True)
class _Ring:
    """Ring of a blockwise op; see `AttentionTurn`. `returning` are positions of results."""

    axes: tuple[int, ...]
    size: int
    moving: tuple[int, ...]
    returning: tuple[int, ...]
    zigzag: bool
    chunks: int


def lower_ring_attention(builder: Placer, op: Op, plan: OpPlan) -> bool:
    """Lowers a blockwise op to a ring along an axis of `Modes.streams`; False if no axis fits."""
    owner = builder.owner
    partition = owner.partition
    how = partition.rules[op.id].blockwise
    if how is None:
        return False
    mesh, rule = partition.mesh, partition.rules[op.id]
    ways: dict[tuple[int, ...], dict[int, tuple[ReshardStep, ...]]] = {}
    for i in how.passing:
        x = plan.local_op.ins[i]
        if i in plan.moved and isinstance(x, LocalValue):
            steps = redistribute(mesh, x.layout, x.pending, plan.needs[i], x.pending)
            last = steps[-1] if steps else None
            dim = rule.operands[i].index(how.factor)
            if isinstance(last, AllGather) and last.dim == dim and mesh.size(last.axes) > 1:
                ways.setdefault(last.axes, {})[i] = steps
    looped = {a for a, rows in enumerate(partition.axes) if rows.loops[op.id] >= 0}
    axes = next(
        (a for a in sorted(ways) if looped & set(partition.modes.windowed_einsums) >= set(a)), None
    )
    if axes is None:
        return False
    ins = list(plan.local_op.ins)
    for i in plan.moved:
        if i in ways[axes]:
            local = ins[i]
            assert isinstance(local, LocalValue)
            for step in ways[axes][i][:-1]:
                target = owner.local(local.value, step.layout, step.pending)
                builder.steps.append(Reshard(step, local, target, op))
                local = target
            ins[i] = local
        else:
            ins[i] = builder.reshard_operand(op.operands[i], plan.needs[i], op)
    moving = tuple(i for i in how.passing if i in ways[axes])
    outs = tuple(
        _block(builder, out, rule.results[r].index(how.factor), axes) if r in how.returning else out
        for r, out in enumerate(plan.local_op.outs)
    )
    size = mesh.size(axes)
    zigzag = partition.is_zigzag(op, axes)
    chunks = _chunks(builder, op, how, 2 * size if zigzag else size)
    ring = _Ring(axes, size, moving, how.returning, zigzag, chunks)
    if zigzag:
        for i, x in enumerate(ins):
            tiled = how.factor if i in moving else how.along
            if isinstance(x, LocalValue) and tiled in rule.operands[i]:
                ins[i] = to_zigzag(builder, x, rule.operands[i].index(tiled), axes, op)
        made = tuple(builder.owner.cache.partial(out, 0) for out in outs)
        _turns(builder, op, ins, made, ring)
        for r, (out, local, labels) in enumerate(zip(outs, made, rule.results, strict=True)):
            tiled = how.factor if r in how.returning else how.along
            if tiled in labels:
                from_zigzag(builder, local, out, labels.index(tiled), axes, op)
    else:
        _turns(builder, op, ins, outs, ring)
    builder.reshard_results(outs, op)
    return True


def lower_unsharded(builder: Placer, apply: LocalOp) -> LocalOp:
    """A blockwise op without a ring: in chunks, if its scratch exceeds the target's limit."""
    how = builder.owner.partition.rules[apply.op.id].blockwise
    chunks = _chunks(builder, apply.op, how, 1) if how else 1
    if chunks == 1:
        return apply
    return ChunkedOp(apply.op, apply.ins, apply.outs, apply.blocks, chunks=chunks)


def _chunks(builder: Placer, op: Op, how: Blockwise, blocks: int) -> int:
    """Number of chunks of each of `blocks` blocks, by `attention_scratch_bytes`."""
    partition = builder.owner.partition
    sizes = partition.rules[op.id].sizes
    tiles = math.prod(partition.tiles_of(op, f) for f in how.scratch_factors)
    points = math.prod(sizes[f] for f in how.scratch_factors) // (tiles * blocks)
    length, chunks = sizes[how.factor] // blocks, 1
    most = builder.owner.cache.traits.attention_scratch_bytes
    while how.scratch * points > chunks * most and length % (2 * chunks) == 0:
        chunks *= 2
    return chunks


def _block(builder: Placer, out: LocalValue, dim: int, axes: tuple[int, ...]) -> LocalValue:
    """A result tiled along the ring: each device has the sum of one block."""
    layout: Layout = tuple(
        (*held, *axes) if d == dim else held for d, held in enumerate(out.layout)
    )
    pending = tuple(p for p in out.pending if p[0] not in axes)
    return builder.owner.local(out.value, layout, pending)


def _turns(
    builder: Placer,
    op: Op,
    ins: Sequence[Source],
    outs: tuple[LocalValue, ...],
    ring: _Ring,
) -> None:
    cache, size = builder.owner.cache, ring.size
    pairs = tuple(((i + 1) % size, i) for i in range(size))
    now = list(ins)
    sums: dict[int, LocalValue] = {}
    for turn in range(size):
        following = list(now)
        for i in ring.moving if turn + 1 < size else ():
            local = now[i]
            assert isinstance(local, LocalValue)
            step = shuffle(ring.axes, pairs, local.layout, local.pending)
            following[i] = after = cache.after(local, step)
            builder.pass_on(step, local, after, op, turn + 1)
        arrived: list[LocalValue] = []
        for r in ring.returning if turn else ():
            step = shuffle(ring.axes, pairs, outs[r].layout, outs[r].pending)
            target = cache.after(sums[r], step)
            builder.steps.append(RingReshard(step, sums[r], target, op, turn=turn))
            arrived.append(target)
        made = tuple(
            cache.partial(out, turn + 1) if r in ring.returning else out
            for r, out in enumerate(outs)
        )
        sums = {r: made[r] for r in ring.returning}
        builder.steps.append(
            AttentionTurn(
                op,
                tuple(now),
                made,
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
        now = following
    for r in ring.returning:
        step = shuffle(ring.axes, pairs, outs[r].layout, outs[r].pending)
        builder.steps.append(Reshard(step, sums[r], outs[r], op))
