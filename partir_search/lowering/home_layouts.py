"""Home layouts of a partition's values, and the layouts in which each op reads its operands."""

from __future__ import annotations

import abc
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
from partir_search.lowering.local_ir import Block, LocalOp, Reshard
from partir_search.lowering.local_value import LocalValue, Source


class HomeLayouts(abc.ABC):
    """Values in their home layouts, plans of ops, and reshards, of one partition."""

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
        self.home_codes, self.loop_codes = codes_of(partition)
        modes = partition.modes
        chosen = *modes.windowed_einsums.items(), *modes.ring_schedules.items()
        self.setting = (
            self.order,
            modes.keep_gathered,
            modes.argument_layouts,
            modes.result_layouts,
            *chosen,
        )
        self.plans = cache.plans.setdefault(self.order, {})
        self.homes = cache.homes.setdefault(self.order, {})

    def home(self, v: int) -> LocalValue:
        """A value in its home layout: the layout that propagation gave the value."""
        local = self.homes.get(self.home_codes[v])
        if local is None:
            value = self.module.values[v]
            layout, pending = self.partition.layout(value), self.pending.get(v, ())
            local = self.cache.local(self.partition, value, layout, pending)
            self.homes[self.home_codes[v]] = local
        return local

    def all_home(self, operands: Sequence[Operand]) -> tuple[Source, ...]:
        """Operands in their home layouts; literals as they are."""
        homes, codes, home = self.homes, self.home_codes, self.home
        return tuple(
            [
                x if isinstance(x, Literal) else homes.get(codes[x.id]) or home(x.id)
                for x in operands
            ]
        )

    def reshards(
        self, local: LocalValue, layout: Layout, keep: Pending, op: Op | None, regather: bool
    ) -> tuple[Reshard, ...]:
        """The steps that bring a local value to a layout for an op; () in the layout already."""
        sparse, home = self.active is not None, self.home(local.value.id)
        key = (local.id, layout, keep, op.id if op else NONE, regather, home.id)
        found = self.cache.reshards.get(key) if sparse else None
        if found is None:
            made: list[Reshard] = []
            for step in redistribute(
                self.partition.mesh, local.layout, local.pending, layout, keep
            ):
                target = self.local(local.value, step.layout, step.pending)
                to_home = target is home
                made.append(Reshard(step, local, target, op, regather, to_home, shared=sparse))
                local = target
            found = tuple(made)
            if sparse:
                self.cache.reshards[key] = found
        return found

    def layout(self, operand: Operand) -> Layout:
        return self.home(operand.id).layout if isinstance(operand, Value) else ()

    def local(self, value: Value, layout: Layout, pending: Pending) -> LocalValue:
        return self.cache.local(self.partition, value, layout, pending)

    def plan(self, op: Op) -> OpPlan:
        n, homes = op.id, self.home_codes
        key = (self.loop_codes[n], *[homes[v] for v in self.around(n)])
        plan = self.plans.get(key)
        if plan is None:
            plan = self.plans[key] = self._plan(op)
        return plan

    def _plan(self, op: Op) -> OpPlan:
        partition = self.partition
        windows = partition.windows(op)
        one = self.cache.one
        needs = one(tuple(map(one, self._needs(op, windows))))
        ins = tuple(self.home(x.id) if isinstance(x, Value) else x for x in op.operands)
        outs = tuple(
            self.local(r, layout, partition.partial_result(op, i))
            for i, (r, layout) in enumerate(zip(op.results, partition.makes(op), strict=True))
        )
        moved = tuple(
            i
            for i, (x, layout) in enumerate(zip(ins, needs, strict=True))
            if isinstance(x, LocalValue) and (x.layout != layout or i in windows)
        )
        reshards_results = any(out is not self.home(out.value.id) for out in outs)
        return OpPlan(needs, LocalOp(op, ins, outs), moved, reshards_results, windows)

    def _needs(self, op: Op, windows: Mapping[int, tuple[Window, ...]]) -> tuple[Layout, ...]:
        """Layouts in which an op reads its operands. A window of a replicated operand is taken from
        the whole operand, not from tiles.
        """
        needs = list(self.partition.needs(op))
        for i, each in windows.items():
            needs[i] = taken_from(self.layout(op.operands[i]), needs[i], each)
        return tuple(needs)

    def uses_alone(self, op: Op, value: Value) -> bool:
        """True if no further contraction of this pass reads a value and could share its gathered
        copy.
        """
        rules = self.partition.rules
        return not any(
            o is not op and o.backward == op.backward and rules[o.id].contracts
            for o in self.def_use.users[value.id]
        )

    @abc.abstractmethod
    def block(
        self,
        region: Region,
        args: tuple[LocalValue, ...],
        targets: Sequence[Layout],
        at_home: Sequence[Source],
        constants: Sequence[LocalValue] = (),
    ) -> Block:
        """The block of a region, whose results (at home: `at_home`) leave it in `targets`."""


def taken_from(home: Layout, needed: Layout, windows: Sequence[Window]) -> Layout:
    """Layout from which windows are taken: whole dims of an operand that is replicated there, else
    the tiles that are needed.
    """
    used = {a for axes in home for a in axes}
    for w in windows:
        if not home[w.dim] and used.isdisjoint(w.axes):
            needed = (*needed[: w.dim], (), *needed[w.dim + 1 :])
    return needed
