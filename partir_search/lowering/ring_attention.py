"""Ops that work on one block of a factor after the other, while the blocks pass around an axis:
ring attention (Liu et al., arXiv 2310.01889).

What would be gathered (keys and values) goes from neighbour to neighbour, and what would be
scattered (their gradients) goes with it: a block's sum ends at its owner after one step more.
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
from partir_search.lowering.local_ir import Apply, Move
from partir_search.lowering.passing import Passing
from partir_search.lowering.placing import Placer
from partir_search.lowering.reshard import Step
from partir_search.lowering.slots import Slot, Source
from partir_search.lowering.zigzag import from_zigzag, to_zigzag


def pass_around(builder: Placer, op: Op, plan: OpPlan) -> bool:
    """Lets an op's blocks pass around the mesh's axis that is one to do so on; False if none is."""
    owner = builder.owner
    partition = owner.partition
    how = partition.rules[op.id].blockwise
    if how is None:
        return False
    mesh, rule = partition.mesh, partition.rules[op.id]
    ways: dict[tuple[int, ...], dict[int, tuple[Step, ...]]] = {}
    for i in how.passing:
        x = plan.apply.ins[i]
        if i in plan.moved and isinstance(x, Slot):
            steps = redistribute(mesh, x.layout, x.pending, plan.needs[i], x.pending)
            last = steps[-1] if steps else None
            dim = rule.operands[i].index(how.factor)
            if last and last.kind == "all_gather" and last.dim == dim:
                ways.setdefault(last.axes, {})[i] = steps
    looped = {a for a, rows in enumerate(partition.axes) if rows.loops[op.id] >= 0}
    axes = next((a for a in sorted(ways) if looped & set(partition.modes.streams) >= set(a)), None)
    if axes is None:
        return False
    ins = list(plan.apply.ins)
    for i in plan.moved:
        if i in ways[axes]:
            slot = ins[i]
            assert isinstance(slot, Slot)
            for step in ways[axes][i][:-1]:
                target = owner.slot(slot.value, step.layout, step.pending)
                builder.steps.append(Move(step, slot, target, op))
                slot = target
            ins[i] = slot
        else:
            ins[i] = builder.need(op.operands[i], plan.needs[i], op)
    moving = tuple(i for i in how.passing if i in ways[axes])
    outs = tuple(
        _block(builder, out, rule.results[r].index(how.factor), axes) if r in how.returning else out
        for r, out in enumerate(plan.apply.outs)
    )
    size = mesh.size(axes)
    zigzag = partition.zigzags(op, axes)
    parts = _parts(builder, op, how, 2 * size if zigzag else size)
    first = Passing(axes, size, 0, moving, zigzag, parts)
    if zigzag:
        for i, x in enumerate(ins):
            tiled = how.factor if i in moving else how.along
            if isinstance(x, Slot) and tiled in rule.operands[i]:
                ins[i] = to_zigzag(builder, x, rule.operands[i].index(tiled), axes, op)
        made = tuple(builder.owner.cache.partial(out, 0) for out in outs)
        _turns(builder, op, ins, made, how.returning, first)
        for r, (out, slot, labels) in enumerate(zip(outs, made, rule.results, strict=True)):
            tiled = how.factor if r in how.returning else how.along
            if tiled in labels:
                from_zigzag(builder, slot, out, labels.index(tiled), axes, op)
    else:
        _turns(builder, op, ins, outs, how.returning, first)
    builder.settle(outs, op)
    return True


def alone(builder: Placer, apply: Apply) -> Apply:
    """An op that works on blocks as one device does it alone: in parts, if they are large."""
    how = builder.owner.partition.rules[apply.op.id].blockwise
    parts = _parts(builder, apply.op, how, 1) if how else 1
    if parts == 1:
        return apply
    return dataclasses.replace(apply, part=Passing((), 1, 0, (), False, parts))


def _parts(builder: Placer, op: Op, how: Blockwise, blocks: int) -> int:
    """Into how many parts each of so many blocks is cut, so that little is there at a time."""
    partition = builder.owner.partition
    sizes = partition.rules[op.id].sizes
    tiles = math.prod(partition.tiles_of(op, f) for f in how.scratch_factors)
    points = math.prod(sizes[f] for f in how.scratch_factors) // (tiles * blocks)
    length, parts = sizes[how.factor] // blocks, 1
    most = builder.owner.cache.traits.attention_scratch_bytes
    while how.scratch * points > parts * most and length % (2 * parts) == 0:
        parts *= 2
    return parts


def _block(builder: Placer, out: Slot, dim: int, axes: tuple[int, ...]) -> Slot:
    """A result of which each device has the sum of its block."""
    layout: Layout = tuple(
        (*held, *axes) if d == dim else held for d, held in enumerate(out.layout)
    )
    pending = tuple(p for p in out.pending if p[0] not in axes)
    return builder.owner.slot(out.value, layout, pending)


def _turns(
    builder: Placer,
    op: Op,
    ins: Sequence[Source],
    outs: tuple[Slot, ...],
    returning: tuple[int, ...],
    first: Passing,
) -> None:
    cache, size = builder.owner.cache, first.size
    pairs = tuple(((i + 1) % size, i) for i in range(size))
    now = list(ins)
    sums: dict[int, Slot] = {}
    for turn in range(size):
        following = list(now)
        for i in first.moving if turn + 1 < size else ():
            slot = now[i]
            assert isinstance(slot, Slot)
            step = shuffle(first.axes, pairs, slot.layout, slot.pending)
            following[i] = cache.stretched(slot, step)
            builder.pass_on(step, slot, following[i], op, turn + 1)  # type: ignore[arg-type]
        arrived: list[Slot] = []
        for r in returning if turn else ():
            step = shuffle(first.axes, pairs, outs[r].layout, outs[r].pending)
            target = cache.stretched(sums[r], step)
            builder.steps.append(Move(step, sums[r], target, op, turn=turn))
            arrived.append(target)
        made = tuple(
            cache.partial(out, turn + 1) if r in returning else out for r, out in enumerate(outs)
        )
        sums = {r: made[r] for r in returning}
        part = dataclasses.replace(first, offset=turn, arrived=tuple(arrived))
        builder.steps.append(Apply(op, tuple(now), made, turn=turn, turns=size, part=part))
        now = following
    for r in returning:
        step = shuffle(first.axes, pairs, outs[r].layout, outs[r].pending)
        builder.steps.append(Move(step, sums[r], outs[r], op))
