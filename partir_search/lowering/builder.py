"""Lowering of one region's ops: reshards, windows, rings and collective matmuls."""

from __future__ import annotations

from collections.abc import Sequence

from partir_search.ir.core import Op
from partir_search.ir.skewed_schedule import HOME, PRIMEPAR, Ring
from partir_search.lowering.cache import OpPlan
from partir_search.lowering.collective_matmul import (
    PARTIAL_RESULT,
    MatmulRing,
    gather_ring,
    scatter_ring,
)
from partir_search.lowering.diagonals import permute_blocks, redistribute
from partir_search.lowering.local_ir import (
    LocalOp,
    MatmulTurn,
    Reshard,
    RingReshard,
    SkewedTurn,
)
from partir_search.lowering.local_value import LocalValue, Source
from partir_search.lowering.regions import region_plan
from partir_search.lowering.reshard_builder import ReshardBuilder
from partir_search.lowering.reshard_steps import ReshardStep
from partir_search.lowering.ring_attention import lower_ring_attention, lower_unsharded


class RegionBuilder(ReshardBuilder):
    """Instructions of one region, appended op by op."""

    def op(self, op: Op) -> None:
        """Appends an op without regions, as a ring or as one instruction, and reshards."""
        plan = self.owner.plan(op)
        local_op = plan.local_op
        if self.owner.partition.modes.windowed_einsums and (
            lower_ring_attention(self, op, plan) or self.collective_matmul(op, plan)
        ):
            return
        if plan.moved:
            ins = list(local_op.ins)
            for i in plan.moved:
                ins[i] = self.reshard_operand(op.operands[i], plan.needs[i], op)
                if i in plan.windows:
                    ins[i] = self.window(ins[i], plan.windows[i], op)
                if i in plan.joining:
                    ins[i] = self.mask(ins[i], plan.joining[i], op)
            local_op = LocalOp(op, tuple(ins), local_op.outs)
        partition = self.owner.partition
        ring = partition.ring(op) if partition.mesh.triples else None
        if ring and ring.size > 1:
            self.skewed_ring(local_op, ring)
        elif partition.rules[op.id].blockwise:
            self.steps.append(lower_unsharded(self, local_op))
        else:
            self.steps.append(local_op)
        if plan.reshards_results:
            self.reshard_results(local_op.outs, op)

    def collective_matmul(self, op: Op, plan: OpPlan) -> bool:
        """Lowers a product to a collective matmul along an axis of `Modes.windowed_einsums`.

        The ring replaces the all_gather of an operand or the reduce_scatter of the result,
        whichever moves the most bytes. False if the product has neither.
        """
        owner = self.owner
        partition, rule = owner.partition, owner.partition.rules[op.id]
        if not rule.supports_ring or partition.ring(op):
            return False
        mesh, axes = partition.mesh, partition.modes.windowed_einsums
        looped = [a for a, rows in enumerate(partition.axes) if rows.loops[op.id] >= 0]
        found: list[tuple[int, MatmulRing, tuple[ReshardStep, ...]]] = []
        for i in plan.moved:
            x = plan.local_op.ins[i]
            if not isinstance(x, LocalValue) or (x.value.id, plan.needs[i]) in self.copies:
                continue
            keep = self.unfinished(x, op)
            steps = redistribute(mesh, x.layout, x.partial, plan.needs[i], keep)
            ring = gather_ring(rule, i, steps, axes, mesh.sizes, looped)
            if ring and owner.is_sole_contraction(op, x.value):
                found.append((x.nbytes * (ring.size - 1), ring, steps))
        (out,) = plan.local_op.outs
        home = owner.home(out.value.id)
        steps = redistribute(mesh, out.layout, out.partial, home.layout, home.partial)
        if steps and (ring := scatter_ring(rule, steps, axes, mesh.sizes)):
            found.append((out.nbytes, ring, steps))
        if not found:
            return False
        _, ring, steps = max(found, key=lambda f: f[0])
        ins = list(plan.local_op.ins)
        for i in plan.moved:
            if i != ring.moving:
                ins[i] = self.reshard_operand(op.operands[i], plan.needs[i], op)
        if ring.moving == PARTIAL_RESULT:
            out = owner.local(out.value, steps[0].layout, steps[0].partial)
            self.result_turns(op, ring, tuple(ins), out)
        else:
            local = ins[ring.moving]
            assert isinstance(local, LocalValue)
            for step in steps[:-1]:
                target = owner.local(local.value, step.layout, step.partial)
                self.steps.append(Reshard(step, local, target, op))
                local = target
            ins[ring.moving] = local
            self.operand_turns(op, ring, ins, out)
        self.reshard_results((out,), op)
        return True

    def operand_turns(
        self, op: Op, ring: MatmulRing, ins: Sequence[Source], out: LocalValue
    ) -> None:
        """Appends the turns of a ring whose operand blocks move; results are joined or summed."""
        own = ins[ring.moving]
        assert isinstance(own, LocalValue)
        blocks, groups = {0: own}, ring.groups
        turn = 0
        for group, following in zip(groups, [*groups[1:], []], strict=True):
            for offset in following:
                (previous,) = ring.previous(offset)
                step = ring.permute(blocks[previous], offset, previous)
                blocks[offset] = self.owner.cache.after_step(blocks[previous], step)
                self.permute_block(step, blocks[previous], blocks[offset], op, turn + len(group))
            for offset in group:
                operands = tuple(
                    blocks[offset] if i == ring.moving else x for i, x in enumerate(ins)
                )
                self.steps.append(
                    MatmulTurn(
                        op, operands, (out,), turn=turn, turns=ring.size, ring=ring, offset=offset
                    )
                )
                turn += 1

    def result_turns(
        self, op: Op, ring: MatmulRing, ins: tuple[Source, ...], out: LocalValue
    ) -> None:
        """Appends the turns of a ring whose partial results move; each turn adds to one block."""
        sums: dict[int, LocalValue] = {}
        turn = 0
        for group in ring.groups:
            received: dict[int, list[LocalValue]] = {}
            for offset in group:
                received[offset] = []
                for previous in ring.previous(offset):
                    step = ring.permute(out, offset, previous)
                    target = self.owner.cache.after_step(sums[previous], step)
                    received[offset].append(target)
                    self.steps.append(RingReshard(step, sums[previous], target, op, turn=turn))
            for offset in group:
                sums[offset] = self.owner.cache.partial_block(out, offset) if offset else out
                self.steps.append(
                    MatmulTurn(
                        op,
                        ins,
                        (sums[offset],),
                        turn=turn,
                        turns=ring.size,
                        ring=ring,
                        offset=offset,
                        arrived=tuple(received[offset]),
                    )
                )
                turn += 1

    def skewed_ring(self, local_op: LocalOp, ring: Ring) -> None:
        """Appends the turns of a ring on two axes and their diagonal.

        Blocks for a turn are sent before the preceding turn begins.
        """
        op, ins, (out,) = local_op.op, list(local_op.ins), local_op.outs
        rule = self.owner.partition.rules[op.id]
        indices, last = [ring.indices(rule, dims) for dims in rule.operands], ring.size - 1
        (result,) = (ring.indices(rule, dims) for dims in rule.results)
        places = [ring.place(result, t) for t in (*range(ring.size), HOME)]
        blocks = [
            self.owner.cache.ring_block(out, place) for place in places
        ]  # the last one, at `HOME`, is `out`
        for i, local in enumerate(ins):
            if isinstance(local, LocalValue):
                ins[i] = self.skew_operand(local, ring, indices[i], op)
        for turn in range(ring.size):
            operands = tuple(ins)
            arrived: tuple[LocalValue, ...] = ()
            if turn and (pairs := ring.pairs(result, turn - 1, turn)):
                step = permute_blocks(ring.axes[:2], pairs, out.layout, out.partial)
                arrived = (self.owner.cache.after_step(blocks[turn - 1], step),)
                self.steps.append(RingReshard(step, blocks[turn - 1], arrived[0], op, turn=turn))
            for i, local in enumerate(operands):
                if turn == last or not isinstance(local, LocalValue):
                    continue
                if pairs := ring.pairs(indices[i], turn, turn + 1):
                    step = permute_blocks(ring.axes[:2], pairs, local.layout, local.partial)
                    moved = ins[i] = self.owner.cache.after_step(local, step)
                    self.permute_block(step, local, moved, op, turn + 1)
            outs = (blocks[turn],)
            self.steps.append(
                SkewedTurn(op, operands, outs, turn=turn, turns=ring.size, arrived=arrived)
            )
        if pairs := ring.pairs(result, last, HOME):
            step = permute_blocks(ring.axes[:2], pairs, out.layout, out.partial)
            self.steps.append(Reshard(step, blocks[last], out, op))
        if ring.form == PRIMEPAR:
            for i, local in enumerate(ins):
                if isinstance(local, LocalValue):
                    self.ring_operands[
                        local.value.id, local.layout, ring.place(indices[i], last)
                    ] = local

    def skew_operand(
        self, local: LocalValue, ring: Ring, indices: tuple[int, ...], op: Op
    ) -> LocalValue:
        """Operand on the devices of the first turn.

        An operand that an earlier ring left at the same devices is reused.
        """
        pairs = ring.pairs(indices, HOME, 0)
        if not pairs:
            return local
        left = self.ring_operands.get((local.value.id, local.layout, ring.place(indices, 0)))
        if left:
            return left
        step = permute_blocks(ring.axes[:2], pairs, local.layout, local.partial)
        moved = self.owner.cache.after_step(local, step)
        self.steps.append(Reshard(step, local, moved, op))
        return moved

    def region_op(self, op: Op) -> None:
        """Appends an op with regions, and reshards of operands and results."""
        plan = region_plan(self.owner, op)
        local_op = plan.local_op
        if plan.moved:
            ins = list(local_op.ins)
            for i in plan.moved:
                ins[i] = self.reshard_operand(op.operands[i], plan.needs[i], op)
            local_op = LocalOp(op, tuple(ins), local_op.outs, local_op.regions)
        self.steps.append(local_op)
        if plan.reshards_results:
            self.reshard_results(local_op.outs, op)
