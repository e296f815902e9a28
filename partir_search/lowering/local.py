"""Builds the device-local program of a partition.

Every value rests in one layout. An op needs its operands in the layout that its loops give them
and makes its results in another; the difference is redistribution, placed right after the op
that makes a value and right before the op that needs it. A redistributed copy is shared by uses
that lie close together in the same phase (forward or backward) and made again for later ones:
this is what keeps a parameter's memory sharded between its uses (ZeRO-3).
"""

from __future__ import annotations

import dataclasses
import functools
from array import array
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from partir_search.ir.core import Literal, Op, Operand, Region, Value
from partir_search.ir.partition import (
    Layout,
    Partition,
    Pending,
    Window,
    active_ops,
)
from partir_search.ir.rows import AxisRows
from partir_search.ir.rule import NONE
from partir_search.lowering.builder import BlockBuilder
from partir_search.lowering.program import Apply, Block, LocalProgram, Move, Slot, Source
from partir_search.lowering.reshard import Step
from partir_search.lowering.skew import redistribute, straight
from partir_search.lowering.window import stretched

CODE_BITS = 7  # hold a dim or a factor and whether a sum is pending: up to 62 dims

H = TypeVar("H", bound=Hashable)


@dataclasses.dataclass(frozen=True, slots=True)
class OpPlan:
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


@dataclasses.dataclass(frozen=True, slots=True)
class Ends:
    """How a program's arguments and constants come, and the layouts that its results leave in."""

    constants: dict[int, Slot]
    args: tuple[Slot, ...]
    targets: tuple[Layout, ...]


class LocalCache:
    """What the states of one module on one mesh share: rows of axes, slots and op plans."""

    def __init__(self) -> None:
        self.rows: dict[bytes, AxisRows] = {}
        self.slots: dict[tuple[object, ...], Slot] = {}
        self.rests: dict[tuple[int, ...], dict[int, Slot]] = {}
        self.plans: dict[tuple[int, ...], dict[tuple[int, ...], OpPlan]] = {}
        self.moves: dict[tuple[object, ...], tuple[Move, ...]] = {}
        self.alike: dict[Hashable, Any] = {}  # layouts and shapes: ops have few, and many the same
        self.ends: dict[tuple[object, ...], Ends] = {}

    def slot(self, partition: Partition, value: Value, layout: Layout, pending: Pending) -> Slot:
        key = (value.id, layout, pending)
        slot = self.slots.get(key)
        if slot is None:
            layout, pending = self.one(layout), self.one(pending)
            shape = self.one(partition.local_shape(value.type.shape, layout))
            slot = Slot(len(self.slots), value, layout, pending, shape)
            self.slots[value.id, layout, pending] = slot
        return slot

    def one(self, x: H) -> H:
        """The one object of all that equal `x`."""
        return self.alike.setdefault(x, x)  # type: ignore[no-any-return]

    def partial(self, slot: Slot, offset: Hashable) -> Slot:
        """A block of a result that another device adds to."""
        key = (slot.id, offset)
        found = self.slots.get(key)
        if found is None:
            found = Slot(len(self.slots), slot.value, slot.layout, slot.pending, slot.shape)
            self.slots[key] = found
        return found

    def placed(self, slot: Slot, place: tuple[int, ...]) -> Slot:
        """A result of a ring, somewhere on its way; `slot` itself where it belongs."""
        return self.partial(slot, place) if any(place) else slot

    def stretched(self, slot: Slot, step: Step, blocks: Sequence[Slot] = ()) -> Slot:
        """The slot after one step of a window, put together with `blocks`."""
        key = (slot.id, step, *(b.id for b in blocks))
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
    return Localizer(partition, cache or LocalCache(), sparse).program()


def _codes(partition: Partition) -> tuple[Sequence[int], Sequence[int]]:
    """One number per value, for it and its tiles and pending sums, and one per op, for it and its
    loops.
    """
    rests: Any = np.arange(len(partition.module.values), dtype=np.int64)
    loops: Any = np.arange(len(partition.module.ops), dtype=np.int64)
    short = len(partition.axes) * CODE_BITS + max(len(rests), len(loops)).bit_length() <= 62
    if not short:
        rests, loops = rests.astype(object), loops.astype(object)
    for rows in partition.axes:
        of_values, of_ops = rows.codes
        rests = (rests << CODE_BITS) + of_values
        loops = (loops << CODE_BITS) + of_ops
    if short:  # a fifth of a list's bytes
        return array("q", rests.tobytes()), array("q", loops.tobytes())
    return rests.tolist(), loops.tolist()


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
        self.resting, self.looping = _codes(partition)
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

    def program(self) -> LocalProgram:
        body = self.module.body
        boundary = [*self.module.constants, *(v.id for v in body.args)]
        boundary += [r.id for r in body.results if isinstance(r, Value)]
        modes = self.partition.modes
        key = (self.order, modes.enters, modes.leaves, *[self.resting[v] for v in boundary])
        ends = self.cache.ends.get(key)
        if ends is None:
            ends = self.cache.ends[key] = self._ends()
        block = self.block(body, ends.args, ends.targets, tuple(ends.constants.values()))
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
        """Whether no other product of the same pass uses a value: they share what is gathered."""
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
        constants: Sequence[Slot] = (),
    ) -> Block:
        builder = BlockBuilder(self)
        left: dict[tuple[int, Layout], Source] = {(s.value.id, s.layout): s for s in args}
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
        results = tuple(
            builder.need(r, target, None)
            if isinstance(r, Literal) or (r.id, target) not in left
            else left[r.id, target]
            for r, target in zip(region.results, targets, strict=True)
        )
        return Block(region, args, builder.steps, results)

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
