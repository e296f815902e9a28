"""Builds one region's instructions: redistributions, windows, rings and the ops themselves."""

from __future__ import annotations

from collections.abc import Sequence

from partir_search.ir.core import Op
from partir_search.ir.skewed_schedule import HOME, PAPER, Ring
from partir_search.lowering.cache import OpPlan
from partir_search.lowering.collective_matmul import RESULT, Part, Walk, gather_walk, scatter_walk
from partir_search.lowering.diagonals import redistribute, shuffle
from partir_search.lowering.local_ir import Apply, Move
from partir_search.lowering.placing import Placer
from partir_search.lowering.regions import region_plan
from partir_search.lowering.reshard import Step
from partir_search.lowering.ring_attention import alone, pass_around
from partir_search.lowering.slots import Slot, Source


class BlockBuilder(Placer):
    """Builds the instructions of one region's ops."""

    def op(self, op: Op) -> None:
        plan = self.owner.plan(op)
        apply = plan.apply
        if self.owner.partition.modes.streams and (
            pass_around(self, op, plan) or self.stream(op, plan)
        ):
            return
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
            self.steps.append(alone(self, apply))
        if plan.settles:
            self.settle(apply.outs, op)

    def stream(self, op: Op, plan: OpPlan) -> bool:
        """Walks the largest of what would be gathered for a product or scattered after it, where
        the mesh's axis is one to do so on; False if there is nothing.
        """
        owner = self.owner
        partition, rule = owner.partition, owner.partition.rules[op.id]
        if not rule.walks or partition.ring(op):
            return False
        mesh, axes = partition.mesh, partition.modes.streams
        looped = [a for a, rows in enumerate(partition.axes) if rows.loops[op.id] >= 0]
        found: list[tuple[int, Walk, tuple[Step, ...]]] = []
        for i in plan.moved:
            x = plan.apply.ins[i]
            if not isinstance(x, Slot) or (x.value.id, plan.needs[i]) in self.copies:
                continue
            steps = redistribute(mesh, x.layout, x.pending, plan.needs[i], x.pending)
            walk = gather_walk(rule, i, steps, axes, mesh.sizes, looped)
            if walk and owner.uses_alone(op, x.value):
                found.append((x.nbytes * (walk.size - 1), walk, steps))
        (out,) = plan.apply.outs
        rest = owner.rest(out.value.id)
        steps = redistribute(mesh, out.layout, out.pending, rest.layout, rest.pending)
        if steps and (walk := scatter_walk(rule, steps, axes, mesh.sizes)):
            found.append((out.nbytes, walk, steps))
        if not found:
            return False
        _, walk, steps = max(found, key=lambda f: f[0])
        ins = list(plan.apply.ins)
        for i in plan.moved:
            if i != walk.moving:
                ins[i] = self.need(op.operands[i], plan.needs[i], op)
        if walk.moving == RESULT:
            out = owner.slot(out.value, steps[0].layout, steps[0].pending)
            self.pass_results(op, walk, tuple(ins), out)
        else:
            slot = ins[walk.moving]
            assert isinstance(slot, Slot)
            for step in steps[:-1]:
                target = owner.slot(slot.value, step.layout, step.pending)
                self.steps.append(Move(step, slot, target, op))
                slot = target
            ins[walk.moving] = slot
            self.pass_operand(op, walk, ins, out)
        self.settle((out,), op)
        return True

    def pass_operand(self, op: Op, walk: Walk, ins: Sequence[Source], out: Slot) -> None:
        """Turns of a product, whose operand's blocks move on while it works."""
        own = ins[walk.moving]
        assert isinstance(own, Slot)
        held, groups = {0: own}, walk.groups
        turn = 0
        for group, following in zip(groups, [*groups[1:], []], strict=True):
            for offset in following:
                (before,) = walk.before(offset)
                step = walk.step(held[before], offset, before)
                held[offset] = self.owner.cache.stretched(held[before], step)
                self.pass_on(step, held[before], held[offset], op, turn + len(group))
            for offset in group:
                now = tuple(held[offset] if i == walk.moving else x for i, x in enumerate(ins))
                part = Part(walk, offset)
                self.steps.append(Apply(op, now, (out,), turn=turn, turns=walk.size, part=part))
                turn += 1

    def pass_results(self, op: Op, walk: Walk, ins: tuple[Source, ...], out: Slot) -> None:
        """Turns of a product, each for another block of the result, whose sum so far arrives."""
        made: dict[int, Slot] = {}
        turn = 0
        for group in walk.groups:
            arrived: dict[int, list[Slot]] = {}
            for offset in group:
                arrived[offset] = []
                for before in walk.before(offset):
                    step = walk.step(out, offset, before)
                    arrived[offset].append(self.owner.cache.stretched(made[before], step))
                    self.steps.append(Move(step, made[before], arrived[offset][-1], op, turn=turn))
            for offset in group:
                made[offset] = self.owner.cache.partial(out, offset) if offset else out
                part, sums = Part(walk, offset), tuple(arrived[offset])
                outs = (made[offset],)
                self.steps.append(Apply(op, ins, outs, (), turn, walk.size, part, sums))
                turn += 1

    def turns(self, apply: Apply, ring: Ring) -> None:
        """One product per slice of what is walked; what moves on meanwhile is sent before it, to
        be there after it.
        """
        op, ins, (out,) = apply.op, list(apply.ins), apply.outs
        rule = self.owner.partition.rules[op.id]
        held, last = [ring.held(rule, dims) for dims in rule.operands], ring.size - 1
        (result,) = (ring.held(rule, dims) for dims in rule.results)
        places = [ring.place(result, t) for t in (*range(ring.size), HOME)]
        made = [self.owner.cache.placed(out, place) for place in places]  # `out` itself at home
        for i, slot in enumerate(ins):
            if isinstance(slot, Slot):
                ins[i] = self.begin(slot, ring, held[i], op)
        for turn in range(ring.size):
            now = tuple(ins)
            arrived: tuple[Slot, ...] = ()
            if turn and (pairs := ring.pairs(result, turn - 1, turn)):
                step = shuffle(ring.axes[:2], pairs, out.layout, out.pending)
                arrived = (self.owner.cache.stretched(made[turn - 1], step),)
                self.steps.append(Move(step, made[turn - 1], arrived[0], op, turn=turn))
            for i, slot in enumerate(now):
                if turn == last or not isinstance(slot, Slot):
                    continue
                if pairs := ring.pairs(held[i], turn, turn + 1):
                    step = shuffle(ring.axes[:2], pairs, slot.layout, slot.pending)
                    moved = ins[i] = self.owner.cache.stretched(slot, step)
                    self.pass_on(step, slot, moved, op, turn + 1)
            self.steps.append(Apply(op, now, (made[turn],), (), turn, ring.size, arrived=arrived))
        if pairs := ring.pairs(result, last, HOME):
            step = shuffle(ring.axes[:2], pairs, out.layout, out.pending)
            self.steps.append(Move(step, made[last], out, op))
        if ring.form == PAPER:
            for i, slot in enumerate(ins):
                if isinstance(slot, Slot):
                    self.left[slot.value.id, slot.layout, ring.place(held[i], last)] = slot

    def begin(self, slot: Slot, ring: Ring, held: tuple[int, ...], op: Op) -> Slot:
        """An operand where the first turn needs it: a ring before may have left it there."""
        pairs = ring.pairs(held, HOME, 0)
        if not pairs:
            return slot
        left = self.left.get((slot.value.id, slot.layout, ring.place(held, 0)))
        if left:
            return left
        step = shuffle(ring.axes[:2], pairs, slot.layout, slot.pending)
        moved = self.owner.cache.stretched(slot, step)
        self.steps.append(Move(step, slot, moved, op))
        return moved

    def region_op(self, op: Op) -> None:
        plan = region_plan(self.owner, op)
        apply = plan.apply
        if plan.moved:
            ins = list(apply.ins)
            for i in plan.moved:
                ins[i] = self.need(op.operands[i], plan.needs[i], op)
            apply = Apply(op, tuple(ins), apply.outs, apply.blocks)
        self.steps.append(apply)
        if plan.settles:
            self.settle(apply.outs, op)
