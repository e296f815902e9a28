"""Builds the device-local program of a partition.

Every value rests in one layout. An op needs its operands in the layout that its loops give them
and makes its results in another; the difference is redistribution, placed right after the op
that makes a value and right before the op that needs it. A redistributed copy is shared by uses
that lie close together in the same phase (forward or backward) and made again for later ones:
this is what keeps a parameter's memory sharded between its uses (ZeRO-3).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from partir_search.ir.core import Literal, Op, Operand, Region, Value
from partir_search.ir.partition import (
    AxisRows,
    Layout,
    Partition,
    Pending,
    Window,
    active_ops,
)
from partir_search.ir.ring import Ring
from partir_search.lowering.program import Apply, Block, LocalProgram, Move, Slot, Source
from partir_search.lowering.reshard import Step
from partir_search.lowering.skew import Shuffle, redistribute, straight
from partir_search.lowering.window import stretched, window_steps
from partir_search.propagation.rules.control_flow import flows_of

CODE_BITS = 7  # hold a dim or a factor and whether a sum is pending: up to 62 dims
REUSE_WINDOW = 64  # ops between two uses of a copy beyond which it is made again


@dataclasses.dataclass(slots=True)
class _Copy:
    slot: Slot
    last_use: int
    backward: bool


@dataclasses.dataclass(frozen=True, slots=True)
class _OpPlan:
    """An op under given loops and resting layouts.

    Attributes:
      needs: layout that each operand is needed in.
      apply: the op with every operand at rest; the instruction itself where nothing moves.
      moved: operand positions that must be redistributed, or read otherwise than by tiles.
      windows: what is read so, by operand position.
      settles: whether some result is made otherwise than it rests.

    An op that neither moves nor settles anything is not active (`ir.partition.active_ops`).
    """

    needs: tuple[Layout, ...]
    apply: Apply
    moved: tuple[int, ...]
    settles: bool
    windows: Mapping[int, tuple[Window, ...]]


class LocalCache:
    """What the states of one module on one mesh share: rows of axes, slots and op plans."""

    def __init__(self) -> None:
        self.rows: dict[bytes, AxisRows] = {}
        self.slots: dict[tuple[object, ...], Slot] = {}
        self.rests: dict[tuple[int, ...], list[dict[int, Slot]]] = {}
        self.plans: dict[tuple[int, ...], list[dict[tuple[int, ...], _OpPlan]]] = {}

    def slot(self, partition: Partition, value: Value, layout: Layout, pending: Pending) -> Slot:
        key = (value.id, layout, pending)
        slot = self.slots.get(key)
        if slot is None:
            shape = partition.local_shape(value.type.shape, layout)
            slot = self.slots[key] = Slot(len(self.slots), value, layout, pending, shape)
        return slot

    def stretched(self, slot: Slot, step: Step) -> Slot:
        """The slot after one step of a window."""
        key = (slot.id, step)
        after = self.slots.get(key)
        if after is None:
            shape = stretched(slot.shape, step)
            after = Slot(len(self.slots), slot.value, step.layout, step.pending, shape)
            self.slots[key] = after
        return after


def localize(
    partition: Partition, cache: LocalCache | None = None, *, sparse: bool = False
) -> LocalProgram:
    """The device-local program of `partition`.

    Args:
      cache: of this module and mesh.
      sparse: leave out the ops that run where their operands rest, which most do: enough to know
        the program's cost and collectives, and several times faster.
    """
    return _Localizer(partition, cache or LocalCache(), sparse).program()


def _codes(partition: Partition) -> tuple[list[int], list[int]]:
    """One number per value for its tiles and pending sums, one per op for its loops."""
    rests: Any = np.zeros(len(partition.module.values), dtype=np.int64)
    loops: Any = np.zeros(len(partition.module.ops), dtype=np.int64)
    if len(partition.axes) * CODE_BITS > 62:
        rests, loops = rests.astype(object), loops.astype(object)
    for rows in partition.axes:
        rests = (rests << CODE_BITS) + (rows.tile_row + 1) * 2 + rows.pending
        loops = (loops << CODE_BITS) + rows.loop_row + 1
    return rests.tolist(), loops.tolist()


class _Localizer:
    def __init__(self, partition: Partition, cache: LocalCache, sparse: bool) -> None:
        self.partition, self.cache = partition, cache
        self.module = partition.module
        self.index = partition.index
        self.order = partition.order
        self.pending = {
            v: partition.rest_pending(self.module.values[v])
            for v in frozenset().union(*partition.travelling)
        }
        self.active = active_ops(partition) if sparse else None
        self.around = partition.index.around
        self.resting, self.looping = _codes(partition)
        if self.order not in cache.plans:
            cache.plans[self.order] = [{} for _ in self.module.ops]
            cache.rests[self.order] = [{} for _ in self.module.values]
        self.plans = cache.plans[self.order]
        self.rests = cache.rests[self.order]

    def rest(self, v: int) -> Slot:
        """The slot in which a value rests."""
        slot = self.rests[v].get(self.resting[v])
        if slot is None:
            value = self.module.values[v]
            layout, pending = self.partition.layout(value), self.pending.get(v, ())
            slot = self.cache.slot(self.partition, value, layout, pending)
            self.rests[v][self.resting[v]] = slot
        return slot

    def program(self) -> LocalProgram:
        values = self.module.values
        large = set(self.module.large_constants())
        mesh = self.partition.mesh
        constants = {  # every device holds the small ones whole
            i: self.slot(values[i], straight(mesh, self.rest(i).layout), ())
            if i in large
            else self.slot(values[i], ((),) * len(values[i].type.shape), ())
            for i in self.module.constants
        }
        body = self.module.body
        args = tuple(
            self.slot(v, straight(mesh, self.rest(v.id).layout), ()) for v in body.args
        )
        targets = [straight(mesh, self.layout(r)) for r in body.results]
        for arg, result in self.module.ties:
            targets[result] = args[arg].layout
        block = self.block(body, args, targets, tuple(constants.values()))
        return LocalProgram(self.partition, block, constants)

    def layout(self, operand: Operand) -> Layout:
        return self.rest(operand.id).layout if isinstance(operand, Value) else ()

    def slot(self, value: Value, layout: Layout, pending: Pending) -> Slot:
        return self.cache.slot(self.partition, value, layout, pending)

    def plan(self, op: Op) -> _OpPlan:
        n, resting = op.id, self.resting
        key = (self.looping[n], *[resting[v] for v in self.around[n]])
        plans = self.plans[n]
        plan = plans.get(key)
        if plan is None:
            plan = plans[key] = self._plan(op)
        return plan

    def _plan(self, op: Op) -> _OpPlan:
        partition = self.partition
        windows = partition.windows(op)
        needs = self._needs(op, windows)
        ins = tuple(self.rest(x.id) if isinstance(x, Value) else x for x in op.operands)
        outs = tuple(
            self.slot(r, layout, partition.made_pending(op, i))
            for i, (r, layout) in enumerate(zip(op.results, partition.makes(op), strict=True))
        )
        moved = tuple(
            i
            for i, (x, layout) in enumerate(zip(ins, needs, strict=True))
            if isinstance(x, Slot) and (x.layout != layout or i in windows)
        )
        settles = any(out is not self.rest(out.value.id) for out in outs)
        return _OpPlan(needs, Apply(op, ins, outs), moved, settles, windows)

    def _needs(self, op: Op, windows: Mapping[int, tuple[Window, ...]]) -> tuple[Layout, ...]:
        """Layouts that the operands are needed in. A stretch of what every device holds is taken
        from that, rather than from tiles of it.
        """
        needs = list(self.partition.needs(op))
        for i, each in windows.items():
            rest = self.layout(op.operands[i])
            used = {a for axes in rest for a in axes}
            for w in each:
                if not rest[w.dim] and used.isdisjoint(w.axes):
                    needs[i] = (*needs[i][: w.dim], (), *needs[i][w.dim + 1 :])
        return tuple(needs)

    def block(
        self,
        region: Region,
        args: tuple[Slot, ...],
        targets: Sequence[Layout],
        constants: Sequence[Slot] = (),
    ) -> Block:
        builder = _BlockBuilder(self)
        for constant in constants:
            builder.move(constant, self.rest(constant.value.id).layout, (), None)
        places: Sequence[int] = range(len(region.ops))
        entering = self._entering(region, args)
        if self.active is not None:
            active = np.flatnonzero(self.active[self.index.members[region]]).tolist()
            places = sorted({*active, *entering})
        for builder.position in places:
            op = region.ops[builder.position]
            for arg in entering.get(builder.position, ()):
                builder.move(arg, self.rest(arg.value.id).layout, (), op)
            if op.regions:
                builder.region_op(op)
            else:
                builder.op(op)
        builder.position = len(region.ops)
        results = tuple(
            builder.need(r, target, None) for r, target in zip(region.results, targets, strict=True)
        )
        return Block(region, args, builder.steps, results)

    def _entering(self, region: Region, args: Sequence[Slot]) -> dict[int, list[Slot]]:
        """Arguments that come otherwise than they rest, by position of the op that uses them
        first.
        """
        left = {s.value.id: s for s in args if s is not self.rest(s.value.id)}
        found: dict[int, list[Slot]] = {}
        for at, op in enumerate(region.ops if left else ()):
            for _, v in op.inputs():
                if v.id in left:
                    found.setdefault(at, []).append(left.pop(v.id))
        return found


class _BlockBuilder:
    """One region's instructions, with the copies made so far."""

    def __init__(self, owner: _Localizer) -> None:
        self.owner = owner
        self.steps: list[Apply | Move] = []
        self.copies: dict[tuple[object, ...], _Copy] = {}
        self.position = 0

    def need(self, operand: Operand, layout: Layout, op: Op | None) -> Source:
        """The operand in `layout`, pending as it rests; redistributes it if it must."""
        if isinstance(operand, Literal):
            return operand
        rest = self.owner.rest(operand.id)
        if rest.layout == layout:
            return rest
        backward = op.backward if op else True
        key = (operand.id, layout)
        copy = self.copies.get(key)
        if copy and copy.backward == backward and self.position - copy.last_use <= REUSE_WINDOW:
            copy.last_use = self.position
            return copy.slot
        slot = self.move(rest, layout, rest.pending, op, again=copy is not None)
        self.copies[key] = _Copy(slot, self.position, backward)
        return slot

    def move(
        self, slot: Slot, layout: Layout, keep: Pending, op: Op | None, *, again: bool = False
    ) -> Slot:
        rest = self.owner.rest(slot.value.id)
        mesh = self.owner.partition.mesh
        for step in redistribute(mesh, slot.layout, slot.pending, layout, keep):
            target = self.owner.slot(slot.value, step.layout, step.pending)
            self.steps.append(Move(step, slot, target, op, again, target is rest))
            slot = target
        return slot

    def window(self, source: Source, windows: tuple[Window, ...], op: Op) -> Source:
        """The stretches of `source` that the op reads."""
        if isinstance(source, Literal):
            return source
        key = (source.value.id, source.layout, windows)
        copy = self.copies.get(key)
        if copy and copy.backward == op.backward and self.position - copy.last_use <= REUSE_WINDOW:
            copy.last_use = self.position
            return copy.slot
        slot = source
        for w in windows:
            extent, tiled = slot.value.type.shape[w.dim], bool(slot.layout[w.dim])
            blocks: list[Slot] = []
            for step in window_steps(w, extent, tiled, slot.layout, slot.pending):
                if step.kind == "collective_permute":
                    blocks.append(self.fetch(slot, step, op))
                    continue
                target = self.owner.cache.stretched(slot, step)
                self.steps.append(Move(step, slot, target, op, blocks=tuple(blocks)))
                slot = target
        self.copies[key] = _Copy(slot, self.position, op.backward)
        return slot

    def fetch(self, slot: Slot, step: Step, op: Op) -> Slot:
        """A neighbour's block: so small that it is kept for all uses, also in the backward pass."""
        key = (slot.id, step)
        if key not in self.copies:
            target = self.owner.cache.stretched(slot, step)
            self.steps.append(Move(step, slot, target, op))
            self.copies[key] = _Copy(target, self.position, op.backward)
        return self.copies[key].slot

    def settle(self, outs: Sequence[Slot], op: Op) -> None:
        """Brings fresh results to the layouts in which they rest."""
        for made in outs:
            rest = self.owner.rest(made.value.id)
            if made is not rest:
                self.move(made, rest.layout, rest.pending, op)

    def op(self, op: Op) -> None:
        plan = self.owner.plan(op)
        apply = plan.apply
        if plan.moved:
            ins = list(apply.ins)
            for i in plan.moved:
                ins[i] = self.need(op.operands[i], plan.needs[i], op)
                if i in plan.windows:
                    ins[i] = self.window(ins[i], plan.windows[i], op)
            apply = Apply(op, tuple(ins), apply.outs)
        if ring := self.owner.partition.ring(op):
            self.turns(apply, ring)
        else:
            self.steps.append(apply)
        if plan.settles:
            self.settle(apply.outs, op)

    def turns(self, apply: Apply, ring: Ring) -> None:
        """One product per slice of the sum that is walked; what moves on meanwhile is sent before
        it, to be there after it.
        """
        op, ins = apply.op, list(apply.ins)
        rule = self.owner.partition.rules[op.id]
        pairs = {i: ring.pairs(ring.held(rule, dims)) for i, dims in enumerate(rule.operands)}
        for turn in range(ring.size):
            now = tuple(ins)
            for i, slot in enumerate(now):
                if turn + 1 < ring.size and pairs[i] and isinstance(slot, Slot):
                    step = Step(
                        "collective_permute",
                        ring.axes[:2],
                        0,
                        -1,
                        "",
                        slot.layout,
                        slot.pending,
                        Shuffle(pairs[i]),
                    )
                    ins[i] = self.owner.cache.stretched(slot, step)
                    self.steps.append(Move(step, slot, ins[i], op, turn=turn + 1))
            self.steps.append(Apply(op, now, apply.outs, turn=turn, turns=ring.size))

    def region_op(self, op: Op) -> None:
        owner, flows = self.owner, flows_of(op)
        whole = [((),) * len(x.type.shape) for x in op.operands]  # a predicate stays whole
        needs: list[Layout] = list(whole)
        for i, r, j, lead in flows.enters:
            needs[i] = ((),) * lead + owner.layout(op.regions[r].args[j])
        ins = tuple(self.need(x, layout, op) for x, layout in zip(op.operands, needs, strict=True))
        targets: list[list[Layout]] = [
            [owner.layout(x) for x in region.results] for region in op.regions
        ]
        made: list[Layout] = [owner.layout(r) for r in op.results]
        for r, i, out, lead in flows.leaves:
            layout = owner.layout(op.results[out])
            targets[r][i] = layout[lead:]
            made[out] = ((),) * lead + layout[lead:]
        for r, i, to, j in flows.carries:
            targets[r][i] = owner.layout(op.regions[to].args[j])
        for r, j, out in flows.finals:
            made[out] = owner.layout(op.regions[r].args[j])
        blocks = tuple(
            owner.block(region, tuple(owner.rest(a.id) for a in region.args), targets[r])
            for r, region in enumerate(op.regions)
        )
        outs = tuple(
            owner.slot(result, layout, ()) for result, layout in zip(op.results, made, strict=True)
        )
        self.steps.append(Apply(op, ins, outs, blocks))
        self.settle(outs, op)
