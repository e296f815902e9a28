"""Builds the instructions of one region: reshards, windows, rings and ops."""

from __future__ import annotations

from collections.abc import Sequence

from partir_search.ir.core import Op
from partir_search.ir.skewed_schedule import HOME, PAPER, Ring
from partir_search.lowering.cache import OpPlan
from partir_search.lowering.collective_matmul import RESULT, Walk, gather_walk, scatter_walk
from partir_search.lowering.diagonals import redistribute, shuffle
from partir_search.lowering.local_ir import (
    LocalOp,
    MatmulTurn,
    Reshard,
    RingReshard,
    SkewedTurn,
)
from partir_search.lowering.local_value import LocalValue, Source
from partir_search.lowering.placing import Placer
from partir_search.lowering.regions import region_plan
from partir_search.lowering.reshard_steps import ReshardStep
from partir_search.lowering.ring_attention import lower_ring_attention, lower_unsharded


class BlockBuilder(Placer):
    """Builds the instructions of one region's ops."""

    def op(self, op: Op) -> None:
        plan = self.owner.plan(op)
        apply = plan.local_op
        if self.owner.partition.modes.windowed_einsums and (
            lower_ring_attention(self, op, plan) or self.stream(op, plan)
        ):
            return
        if plan.moved:
            ins = list(apply.ins)
            for i in plan.moved:
                ins[i] = self.reshard_operand(op.operands[i], plan.needs[i], op)
                if i in plan.windows:
                    ins[i] = self.window(ins[i], plan.windows[i], op)
            apply = LocalOp(op, tuple(ins), apply.outs)
        ring = self.owner.partition.ring(op)
        if ring and ring.size > 1:
            self.turns(apply, ring)
        else:
            self.steps.append(lower_unsharded(self, apply))
        if plan.reshards_results:
            self.reshard_results(apply.outs, op)

    def stream(self, op: Op, plan: OpPlan) -> bool:
        """Lowers a product to a collective matmul over the largest operand gathered, or result
        scattered, along an axis of `Modes.streams`; False if the product has none.
        """
        owner = self.owner
        partition, rule = owner.partition, owner.partition.rules[op.id]
        if not rule.supports_ring or partition.ring(op):
            return False
        mesh, axes = partition.mesh, partition.modes.windowed_einsums
        looped = [a for a, rows in enumerate(partition.axes) if rows.loops[op.id] >= 0]
        found: list[tuple[int, Walk, tuple[ReshardStep, ...]]] = []
        for i in plan.moved:
            x = plan.local_op.ins[i]
            if not isinstance(x, LocalValue) or (x.value.id, plan.needs[i]) in self.copies:
                continue
            steps = redistribute(mesh, x.layout, x.pending, plan.needs[i], x.pending)
            walk = gather_walk(rule, i, steps, axes, mesh.sizes, looped)
            if walk and owner.uses_alone(op, x.value):
                found.append((x.nbytes * (walk.size - 1), walk, steps))
        (out,) = plan.local_op.outs
        home = owner.home(out.value.id)
        steps = redistribute(mesh, out.layout, out.pending, home.layout, home.pending)
        if steps and (walk := scatter_walk(rule, steps, axes, mesh.sizes)):
            found.append((out.nbytes, walk, steps))
        if not found:
            return False
        _, walk, steps = max(found, key=lambda f: f[0])
        ins = list(plan.local_op.ins)
        for i in plan.moved:
            if i != walk.moving:
                ins[i] = self.reshard_operand(op.operands[i], plan.needs[i], op)
        if walk.moving == RESULT:
            out = owner.local(out.value, steps[0].layout, steps[0].pending)
            self.pass_results(op, walk, tuple(ins), out)
        else:
            local = ins[walk.moving]
            assert isinstance(local, LocalValue)
            for step in steps[:-1]:
                target = owner.local(local.value, step.layout, step.pending)
                self.steps.append(Reshard(step, local, target, op))
                local = target
            ins[walk.moving] = local
            self.pass_operand(op, walk, ins, out)
        self.reshard_results((out,), op)
        return True

    def pass_operand(self, op: Op, walk: Walk, ins: Sequence[Source], out: LocalValue) -> None:
        """Turns of a product, while blocks of an operand move on."""
        own = ins[walk.moving]
        assert isinstance(own, LocalValue)
        held, groups = {0: own}, walk.groups
        turn = 0
        for group, following in zip(groups, [*groups[1:], []], strict=True):
            for offset in following:
                (before,) = walk.before(offset)
                step = walk.step(held[before], offset, before)
                held[offset] = self.owner.cache.after(held[before], step)
                self.pass_on(step, held[before], held[offset], op, turn + len(group))
            for offset in group:
                now = tuple(held[offset] if i == walk.moving else x for i, x in enumerate(ins))
                self.steps.append(
                    MatmulTurn(
                        op, now, (out,), turn=turn, turns=walk.size, walk=walk, offset=offset
                    )
                )
                turn += 1

    def pass_results(self, op: Op, walk: Walk, ins: tuple[Source, ...], out: LocalValue) -> None:
        """Turns of a product, each for one block of the result, to whose sum so far it adds."""
        made: dict[int, LocalValue] = {}
        turn = 0
        for group in walk.groups:
            arrived: dict[int, list[LocalValue]] = {}
            for offset in group:
                arrived[offset] = []
                for before in walk.before(offset):
                    step = walk.step(out, offset, before)
                    target = self.owner.cache.after(made[before], step)
                    arrived[offset].append(target)
                    self.steps.append(RingReshard(step, made[before], target, op, turn=turn))
            for offset in group:
                made[offset] = self.owner.cache.partial(out, offset) if offset else out
                self.steps.append(
                    MatmulTurn(
                        op,
                        ins,
                        (made[offset],),
                        turn=turn,
                        turns=walk.size,
                        walk=walk,
                        offset=offset,
                        arrived=tuple(arrived[offset]),
                    )
                )
                turn += 1

    def turns(self, apply: LocalOp, ring: Ring) -> None:
        """Turns of a product on two axes and their diagonal. Blocks for a turn are sent before the
        turn before begins.
        """
        op, ins, (out,) = apply.op, list(apply.ins), apply.outs
        rule = self.owner.partition.rules[op.id]
        held, last = [ring.held(rule, dims) for dims in rule.operands], ring.size - 1
        (result,) = (ring.held(rule, dims) for dims in rule.results)
        places = [ring.place(result, t) for t in (*range(ring.size), HOME)]
        made = [self.owner.cache.placed(out, place) for place in places]  # `out` itself at home
        for i, local in enumerate(ins):
            if isinstance(local, LocalValue):
                ins[i] = self.begin(local, ring, held[i], op)
        for turn in range(ring.size):
            now = tuple(ins)
            arrived: tuple[LocalValue, ...] = ()
            if turn and (pairs := ring.pairs(result, turn - 1, turn)):
                step = shuffle(ring.axes[:2], pairs, out.layout, out.pending)
                arrived = (self.owner.cache.after(made[turn - 1], step),)
                self.steps.append(RingReshard(step, made[turn - 1], arrived[0], op, turn=turn))
            for i, local in enumerate(now):
                if turn == last or not isinstance(local, LocalValue):
                    continue
                if pairs := ring.pairs(held[i], turn, turn + 1):
                    step = shuffle(ring.axes[:2], pairs, local.layout, local.pending)
                    moved = ins[i] = self.owner.cache.after(local, step)
                    self.pass_on(step, local, moved, op, turn + 1)
            outs = (made[turn],)
            self.steps.append(
                SkewedTurn(op, now, outs, turn=turn, turns=ring.size, arrived=arrived)
            )
        if pairs := ring.pairs(result, last, HOME):
            step = shuffle(ring.axes[:2], pairs, out.layout, out.pending)
            self.steps.append(Reshard(step, made[last], out, op))
        if ring.form == PAPER:
            for i, local in enumerate(ins):
                if isinstance(local, LocalValue):
                    self.left[local.value.id, local.layout, ring.place(held[i], last)] = local

    def begin(self, local: LocalValue, ring: Ring, held: tuple[int, ...], op: Op) -> LocalValue:
        """An operand placed for the first turn, unless an earlier ring left the operand there."""
        pairs = ring.pairs(held, HOME, 0)
        if not pairs:
            return local
        left = self.left.get((local.value.id, local.layout, ring.place(held, 0)))
        if left:
            return left
        step = shuffle(ring.axes[:2], pairs, local.layout, local.pending)
        moved = self.owner.cache.after(local, step)
        self.steps.append(Reshard(step, local, moved, op))
        return moved

    def region_op(self, op: Op) -> None:
        plan = region_plan(self.owner, op)
        apply = plan.local_op
        if plan.moved:
            ins = list(apply.ins)
            for i in plan.moved:
                ins[i] = self.reshard_operand(op.operands[i], plan.needs[i], op)
            apply = LocalOp(op, tuple(ins), apply.outs, apply.blocks)
        self.steps.append(apply)
        if plan.reshards_results:
            self.reshard_results(apply.outs, op)
