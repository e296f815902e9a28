"""Builds the device-local program of a partition.

Every value rests in one layout. An op needs its operands in the layout that its loops give them
and makes its results in another; the difference is redistribution, placed right after the op
that makes a value and right before the op that needs it. A redistributed copy is shared by uses
that lie close together in the same phase (forward or backward) and made again for later ones:
this is what keeps a parameter's memory sharded between its uses (ZeRO-3).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from partir_search.ir.core import Literal, Op, Operand, Region, Value
from partir_search.ir.partition import (
    Layout,
    Partition,
    Pending,
    Window,
    active_ops,
)
from partir_search.ir.rule import NONE
from partir_search.lowering.builder import BlockBuilder
from partir_search.lowering.cache import Ends, LocalCache, OpPlan
from partir_search.lowering.codes import codes_of
from partir_search.lowering.diagonals import redistribute, straight
from partir_search.lowering.local_ir import Apply, Block, LocalProgram, Move, Slot, Source


def localize(
    partition: Partition, cache: LocalCache | None = None, *, sparse: bool = False
) -> LocalProgram:
    """The device-local program of `partition`.

    Args:
      cache: of this module and mesh.
      sparse: leave out the ops that run where their operands rest, which most do: enough to know
        the program's cost and collectives, and several times faster.
    """
    return Localizer(partition, cache or LocalCache(), sparse).program()


class Localizer:
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
        self.resting, self.looping = codes_of(partition)
        modes = partition.modes
        chosen = *modes.streams.items(), *modes.forms.items()
        self.setting = (self.order, modes.holds, modes.enters, modes.leaves, *chosen)
        self.plans = cache.plans.setdefault(self.order, {})
        self.rests = cache.rests.setdefault(self.order, {})

    def rest(self, v: int) -> Slot:
        """The slot in which a value rests."""
        slot = self.rests.get(self.resting[v])
        if slot is None:
            value = self.module.values[v]
            layout, pending = self.partition.layout(value), self.pending.get(v, ())
            slot = self.cache.slot(self.partition, value, layout, pending)
            self.rests[self.resting[v]] = slot
        return slot

    def all_resting(self, operands: Sequence[Operand]) -> tuple[Source, ...]:
        """The slots in which values rest; literals as they are."""
        rests, codes, rest = self.rests, self.resting, self.rest
        return tuple(
            [
                x if isinstance(x, Literal) else rests.get(codes[x.id]) or rest(x.id)
                for x in operands
            ]
        )

    def program(self) -> LocalProgram:
        body = self.module.body
        boundary = [*self.module.constants, *(v.id for v in body.args)]
        boundary += [r.id for r in body.results if isinstance(r, Value)]
        modes = self.partition.modes
        key = (self.order, modes.enters, modes.leaves, *[self.resting[v] for v in boundary])
        ends = self.cache.ends.get(key)
        if ends is None:
            ends = self.cache.ends[key] = self._ends()
        results, constants = self.all_resting(body.results), tuple(ends.constants.values())
        block = self.block(body, ends.args, ends.targets, results, constants)
        return LocalProgram(self.partition, block, ends.constants)

    def _ends(self) -> Ends:
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
        tied = {arg for arg, _ in self.module.ties} if mesh.skewed_state else ()
        args = tuple(
            self.rest(v.id)
            if i in tied or not mesh.diagonals
            else self.slot(v, straight(mesh, self.rest(v.id).layout), ())
            for i, v in enumerate(body.args)
        )
        modes = self.partition.modes
        if modes.enters:
            own = dict(modes.enters)
            args = tuple(
                self.slot(s.value, own[i], ()) if i in own else s for i, s in enumerate(args)
            )
        targets = list(map(self.layout, body.results))
        if mesh.diagonals:
            targets = [straight(mesh, layout) for layout in targets]
        for arg, result in self.module.ties:
            targets[result] = args[arg].layout
        for result, layout in modes.leaves:
            targets[result] = layout
        return Ends(constants, args, tuple(targets))

    def moves(
        self, slot: Slot, layout: Layout, keep: Pending, op: Op | None, again: bool
    ) -> tuple[Move, ...]:
        """The moves that bring a slot to a layout for an op; without effect: none."""
        sparse, rest = self.active is not None, self.rest(slot.value.id)
        key = (slot.id, layout, keep, op.id if op else NONE, again, rest.id)
        found = self.cache.moves.get(key) if sparse else None
        if found is None:
            moves: list[Move] = []
            for step in redistribute(self.partition.mesh, slot.layout, slot.pending, layout, keep):
                target = self.slot(slot.value, step.layout, step.pending)
                moves.append(Move(step, slot, target, op, again, target is rest, shared=sparse))
                slot = target
            found = tuple(moves)
            if sparse:
                self.cache.moves[key] = found
        return found

    def layout(self, operand: Operand) -> Layout:
        return self.rest(operand.id).layout if isinstance(operand, Value) else ()

    def slot(self, value: Value, layout: Layout, pending: Pending) -> Slot:
        return self.cache.slot(self.partition, value, layout, pending)

    def plan(self, op: Op) -> OpPlan:
        n, resting = op.id, self.resting
        key = (self.looping[n], *[resting[v] for v in self.around(n)])
        plan = self.plans.get(key)
        if plan is None:
            plan = self.plans[key] = self._plan(op)
        return plan

    def _plan(self, op: Op) -> OpPlan:
        partition = self.partition
        windows = partition.windows(op)
        one = self.cache.one
        needs = one(tuple(map(one, self._needs(op, windows))))
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
        return OpPlan(needs, Apply(op, ins, outs), moved, settles, windows)

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

    def uses_alone(self, op: Op, value: Value) -> bool:
        """True if no other product of its pass uses a value: products share a gathered copy."""
        users = self.products.get(value.id, ())
        return not any(o is not op and o.backward == op.backward for o in users)

    @functools.cached_property
    def products(self) -> dict[int, list[Op]]:
        """Contractions that use each value."""
        found: dict[int, list[Op]] = {}
        for op in self.module.ops:
            if self.partition.rules[op.id].contracts:
                for _, v in op.inputs():
                    found.setdefault(v.id, []).append(op)
        return found

    def block(
        self,
        region: Region,
        args: tuple[Slot, ...],
        targets: Sequence[Layout],
        resting: Sequence[Source],
        constants: Sequence[Slot] = (),
    ) -> Block:
        """The block of a region whose results, which rest in `resting`, leave it in `targets`."""
        builder = BlockBuilder(self)
        left: dict[tuple[int, Layout], Source] = {}
        if self.partition.mesh.diagonals or self.partition.modes.enters:
            left = {(s.value.id, s.layout): s for s in args}
        for constant in constants:
            builder.move(constant, self.rest(constant.value.id).layout, (), None)
        places: Sequence[int] = range(len(region.ops))
        entering = self._entering(region, args, targets)
        leaving = self._leaving(region, targets)
        if self.active is not None:
            active = np.flatnonzero(self.active[self.index.members[region]]).tolist()
            places = sorted({*active, *entering, *leaving} - {len(region.ops)})
        for builder.position in places:
            op = region.ops[builder.position]
            for arg in entering.get(builder.position, ()):
                builder.move(arg, self.rest(arg.value.id).layout, (), op)
            if op.regions:
                builder.region_op(op)
            else:
                builder.op(op)
            for made, target in leaving.get(builder.position, ()):
                left[made.id, target] = builder.need(made, target, op)
        builder.position = len(region.ops)
        for arg in entering.get(builder.position, ()):
            builder.move(arg, self.rest(arg.value.id).layout, (), None)
        results = list(resting)
        for i, (r, target) in enumerate(zip(region.results, targets, strict=True)):
            if isinstance(r, Value) and (left or getattr(results[i], "layout", ()) != target):
                results[i] = left.get((r.id, target)) or builder.need(r, target, None)
        return Block(region, args, builder.steps, tuple(results))

    def _entering(
        self, region: Region, args: Sequence[Slot], targets: Sequence[Layout]
    ) -> dict[int, list[Slot]]:
        """Arguments that come otherwise than they rest, by position of the op that uses them
        first; last those that are only returned. None where all come as they rest.
        """
        if not self.partition.mesh.diagonals and not self.partition.modes.enters:
            return {}
        left = {s.value.id: s for s in args if s is not self.rest(s.value.id)}
        found: dict[int, list[Slot]] = {}
        for at, op in enumerate(region.ops if left else ()):
            for _, v in op.inputs():
                if v.id in left:
                    found.setdefault(at, []).append(left.pop(v.id))
        returned = {
            r.id: left[r.id]
            for r, target in zip(region.results, targets, strict=True)
            if isinstance(r, Value) and r.id in left and left[r.id].layout != target
        }
        found[len(region.ops)] = list(returned.values())
        return found

    def _leaving(
        self, region: Region, targets: Sequence[Layout]
    ) -> dict[int, list[tuple[Value, Layout]]]:
        """Results that leave on other axes than they rest on, by position of the op that makes
        them: nothing is gained by waiting.
        """
        mesh, found = self.partition.mesh, dict[int, list[tuple[Value, Layout]]]()
        if not mesh.diagonals:
            return found
        skewed: dict[int, Layout] = {}
        for r, target in zip(region.results, targets, strict=True):
            if isinstance(r, Value) and straight(mesh, self.layout(r)) != self.layout(r):
                skewed[r.id] = target
        for at, op in enumerate(region.ops):
            for r in op.results:
                if r.id in skewed and skewed[r.id] != self.layout(r):
                    found.setdefault(at, []).append((r, skewed[r.id]))
        return found
