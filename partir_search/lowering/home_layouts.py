"""Home layouts of a partition's values, and layouts of operands in each op."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import overload

from partir_search.ir.core import Literal, Op, Operand, Region, Value
from partir_search.ir.partition import (
    Layout,
    Partial,
    Partition,
    Window,
    active_ops,
)
from partir_search.ir.rule import NONE
from partir_search.lowering.cache import LocalCache, OpPlan
from partir_search.lowering.codes import codes_of
from partir_search.lowering.diagonals import redistribute
from partir_search.lowering.local_ir import LocalOp, LocalRegion, Reshard
from partir_search.lowering.local_value import LocalValue, Source


class AtHome(Sequence[Source]):
    """Operands in their home layouts, looked up on access; pickled as a tuple."""

    def __init__(self, owner: HomeLayouts, operands: Sequence[Operand]) -> None:
        self._owner, self._operands = owner, operands

    def __len__(self) -> int:
        return len(self._operands)

    @overload
    def __getitem__(self, at: int) -> Source: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Source]: ...

    def __getitem__(self, at: int | slice) -> Source | Sequence[Source]:
        if isinstance(at, slice):
            return self._owner.all_home(self._operands[at])
        x = self._operands[at]
        return self._owner.home(x.id) if isinstance(x, Value) else x

    def __iter__(self) -> Iterator[Source]:
        return iter(self._owner.all_home(self._operands))

    def __reduce__(self) -> tuple[object, ...]:
        return tuple, (tuple(self),)


class HomeLayouts(abc.ABC):
    """Values in their home layouts, plans of ops, and reshards, of one partition.

    Attributes:
      active: [ops] True for ops with reshards (`active_ops`); None for complete programs.
      home_codes / loop_codes: see `codes_of`.
      setting: order of axes and modes of the partition, for cache keys.
    """

    def __init__(self, partition: Partition, cache: LocalCache, sparse: bool) -> None:
        self.partition, self.cache = partition, cache
        self.module = partition.module
        self.def_use = partition.def_use
        self.order = partition.order
        self.partials = {
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
        """Value number `v` in its home layout, the layout given by propagation."""
        local = self.homes.get(self.home_codes[v])
        if local is None:
            value = self.module.values[v]
            layout, partial = self.partition.layout(value), self.partials.get(v, ())
            local = self.cache.local(self.partition, value, layout, partial)
            self.homes[self.home_codes[v]] = local
        return local

    def all_home(self, operands: Sequence[Operand]) -> tuple[Source, ...]:
        """Operands in their home layouts; literals unchanged."""
        homes, codes, home = self.homes, self.home_codes, self.home
        return tuple(
            [
                x if isinstance(x, Literal) else homes.get(codes[x.id]) or home(x.id)
                for x in operands
            ]
        )

    def reshards(
        self, local: LocalValue, layout: Layout, keep: Partial, op: Op | None, regather: bool
    ) -> tuple[Reshard, ...]:
        """Steps from a local value to a layout; () if the layouts are equal.

        Args:
          keep: partial sums left unfinished.
          op: op for which the steps are done; None for the results of a program.
          regather: True if the steps repeat earlier ones.
        """
        sparse, home = self.active is not None, self.home(local.value.id)
        key = (local.id, layout, keep, op.id if op else NONE, regather, home.id)
        found = self.cache.reshards.get(key) if sparse else None
        if found is None:
            made: list[Reshard] = []
            for step in redistribute(
                self.partition.mesh, local.layout, local.partial, layout, keep
            ):
                target = self.local(local.value, step.layout, step.partial)
                to_home = target is home
                made.append(Reshard(step, local, target, op, regather, to_home, shared=sparse))
                local = target
            found = tuple(made)
            if sparse:
                self.cache.reshards[key] = found
        return found

    def layout(self, operand: Operand) -> Layout:
        """Home layout of an operand; () for a literal."""
        return self.home(operand.id).layout if isinstance(operand, Value) else ()

    def local(self, value: Value, layout: Layout, partial: Partial) -> LocalValue:
        return self.cache.local(self.partition, value, layout, partial)

    def plan(self, op: Op) -> OpPlan:
        """Plan of an op without regions, cached by the codes of the op and the values around."""
        n, homes = op.id, self.home_codes
        key = (self.loop_codes[n], *[homes[v] for v in self.around(n)])
        plan = self.plans.get(key)
        if plan is None:
            plan = self.plans[key] = self._plan(op)
        return plan

    def _plan(self, op: Op) -> OpPlan:
        partition = self.partition
        windows = partition.windows(op)
        one = self.cache.intern
        needs = one(tuple(map(one, self._needs(op, windows))))
        ins = tuple(self.home(x.id) if isinstance(x, Value) else x for x in op.operands)
        outs = tuple(
            self.local(r, layout, partition.partial_result(op, i))
            for i, (r, layout) in enumerate(zip(op.results, partition.makes(op), strict=True))
        )
        joining = self._joining(op)
        moved = tuple(
            i
            for i, (x, layout) in enumerate(zip(ins, needs, strict=True))
            if isinstance(x, LocalValue) and (x.layout != layout or i in windows or i in joining)
        )
        reshards_results = any(out is not self.home(out.value.id) for out in outs)
        return OpPlan(needs, LocalOp(op, ins, outs), moved, reshards_results, windows, joining)

    def _joining(self, op: Op) -> dict[int, tuple[int, ...]]:
        """Axes of partial sums joined by each scalar operand, by position."""
        axes = [a for a in self.order if op.id in self.partition.axes[a].joining]
        zeros = self.partition.analysis.zeros
        found = {
            i: tuple(a for a in axes if v.id not in self.partition.axes[a].partials)
            for i, v in (op.inputs() if axes else ())
            if v.id not in zeros
        }
        return {i: each for i, each in found.items() if each}

    def _needs(self, op: Op, windows: Mapping[int, tuple[Window, ...]]) -> tuple[Layout, ...]:
        """Layouts of the operands in an op.

        A window of a replicated operand is read from the whole operand, not from tiles.
        """
        needs = list(self.partition.needs(op))
        for i, each in windows.items():
            needs[i] = taken_from(self.layout(op.operands[i]), needs[i], each)
        return tuple(needs)

    def is_sole_contraction(self, op: Op, value: Value) -> bool:
        """True if no second contraction of the same pass (forward or backward) reads `value`.

        A second one would share the resharded copy.
        """
        rules = self.partition.rules
        return not any(
            o is not op and o.backward == op.backward and rules[o.id].contracts
            for o in self.def_use.users[value.id]
        )

    @abc.abstractmethod
    def local_region(
        self,
        region: Region,
        args: Sequence[LocalValue],
        targets: Sequence[Layout],
        at_home: Sequence[Source],
        constants: Sequence[LocalValue] = (),
        leaving: Mapping[int, Layout] | None = None,
    ) -> LocalRegion:
        """Lowers a region.

        Args:
          args: arguments of the region.
          targets: layouts of the results outside of the region.
          at_home: results in their home layouts.
          constants: closed-over arrays as passed to the program.
          leaving: by position, layouts in which results leave, where not at home; with it `args`
            are at home and `targets` are not read.
        """


def taken_from(home: Layout, needed: Layout, windows: Sequence[Window]) -> Layout:
    """Layout from which windows are taken.

    The needed layout, with whole dims in place of tiles for windows of a replicated operand.
    """
    used = {a for axes in home for a in axes}
    for w in windows:
        if not home[w.dim] and used.isdisjoint(w.axes):
            needed = (*needed[: w.dim], (), *needed[w.dim + 1 :])
    return needed
