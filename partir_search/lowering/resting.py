"""Slots in which values rest under a partition, and the operands that each op needs elsewhere."""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping, Sequence

from partir_search.ir.core import Literal, Op, Operand, Region, Value
from partir_search.ir.partition import (
    Layout,
    Partition,
    Pending,
    Window,
    active_ops,
)
from partir_search.ir.rule import NONE
from partir_search.lowering.cache import LocalCache, OpPlan
from partir_search.lowering.codes import codes_of
from partir_search.lowering.diagonals import redistribute
from partir_search.lowering.local_ir import Apply, Block, Move
from partir_search.lowering.slots import Slot, Source


class Resting(abc.ABC):
    """Slots in which values rest, plans of ops, and moves, of one partition."""

    def __init__(self, partition: Partition, cache: LocalCache, sparse: bool) -> None:
        self.partition, self.cache = partition, cache
        self.module = partition.module
        self.def_use = partition.def_use
        self.order = partition.order
        self.pending = {
            v: partition.partial_at_rest(self.module.values[v])
            for v in frozenset().union(*partition.partials)
        }
        self.active = active_ops(partition) if sparse else None
        self.around = partition.def_use.around
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
            self.slot(r, layout, partition.partial_result(op, i))
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

    @abc.abstractmethod
    def block(
        self,
        region: Region,
        args: tuple[Slot, ...],
        targets: Sequence[Layout],
        resting: Sequence[Source],
        constants: Sequence[Slot] = (),
    ) -> Block:
        """The block of a region whose results, which rest in `resting`, leave it in `targets`."""
