"""Kinds of local values on a time axis, inside of regions too.

A value is WHOLE (the same for every part), TILE (rows of one part), ZERO, or a pending reduction,
named by its monoid. A pending reduction is finished after the loop over parts alone, and passes
linear ops, carries and results inside of regions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Set

from partir_search.ir.analysis.reductions import passing_group
from partir_search.ir.core import Literal, Op, Value
from partir_search.ir.data_flow import DataFlowEdges
from partir_search.ir.partition import Partition
from partir_search.lowering.local_ir import LocalOp, LocalRegion, Reshard
from partir_search.lowering.local_value import LocalValue, Source
from partir_search.lowering.reshard_steps import AllGather, AllReduce, Slice

WHOLE, ZERO, TILE = "", "zero", "rows"
PENDING = ("sum", "max", "min", "and", "or")


@dataclasses.dataclass(frozen=True, slots=True)
class Meeting:
    """Place where the parts of a batch meet: a value of all parts is read by one part.

    Attributes:
      op: the op that needs all parts; None for a result of the program. Of a reduction, an op in
        the loop that reads the result; of a value gathered, the op that reads all rows.
      source: the value of all parts.
    """

    op: Op | None
    source: Value


@dataclasses.dataclass(eq=False, slots=True)
class Kinds:
    """Kinds of the local values of a program on one time axis.

    Attributes:
      axis: the time axis.
      of: kind by id of the local value; WHOLE by default.
      meetings: places where parts meet.
      roots: by id of a value computed from a pending or finished reduction, or from a value
        gathered, the reduced or gathered value.
      gathered: by id of a gathered value, the op that reads all rows.
    """

    partition: Partition
    axis: int
    of: dict[int, str] = dataclasses.field(default_factory=dict)
    meetings: list[Meeting] = dataclasses.field(default_factory=list)
    roots: dict[int, Value] = dataclasses.field(default_factory=dict)
    gathered: dict[int, Op] = dataclasses.field(default_factory=dict)

    def kind(self, source: Source) -> str:
        """Kind of a local value or literal."""
        if isinstance(source, Literal):
            return ZERO if source.is_zero() else WHOLE
        return self.of.get(source.id) or (
            ZERO if source.value.id in self.partition.analysis.zeros else WHOLE
        )

    def follow(self, made: LocalValue, source: LocalValue) -> None:
        """Records a value computed from a reduction or from a gathered value."""
        self.roots[made.id] = self.roots.get(source.id, source.value)

    def gather(self, item: Reshard) -> None:
        """Records a gathered value with the op that reads all rows."""
        root = self.roots.get(item.source.id, item.source.value)
        if item.op is not None:
            self.gathered.setdefault(root.id, item.op)

    def meet(self, op: Op | None, source: LocalValue) -> None:
        """Records a reader, in the loop, of a value of all parts."""
        root = self.roots.get(source.id, source.value)
        self.meetings.append(Meeting(self.gathered.get(root.id, op), root))

    def tiled(self, local: LocalValue) -> bool:
        """True if the axis tiles a local value."""
        return any(self.axis in axes for axes in local.layout)

    def loops(self, item: LocalOp) -> bool:
        """True if an op, or an op in its regions, loops over the axis."""
        loops = self.partition.loops[self.axis]
        return loops[item.op.id] >= 0 or any(
            self.loops(s) if isinstance(s, LocalOp) else bool(s.step.axes)
            for r in item.regions
            for s in r.steps
        )

    def moves_rows(self, item: Reshard) -> bool:
        """True if a reshard cuts rows from a value of all parts, or has no element to gather."""
        empty = isinstance(item.step, AllGather) and not item.target.nbytes
        return isinstance(item.step, Slice) or empty

    def made(self, item: LocalOp) -> None:
        """Sets the kinds of the results of a looping op without regions."""
        for out in item.outs:
            pending = dict(out.partial).get(self.axis)
            self.of[out.id] = TILE if self.tiled(out) else pending or WHOLE

    def passes(self, item: LocalOp, monoid: str, pending: Set[int]) -> bool:
        """True if pending operands (ids of values) pass an op."""
        rule, zeros = self.partition.rules[item.op.id], self.partition.analysis.zeros
        more = {x.value.id for x in item.ins if not isinstance(x, Literal) and self._zero(x)}
        return bool(passing_group(item.op, rule, monoid, pending, zeros | more))

    def _zero(self, source: Source) -> bool:
        return self.kind(source) == ZERO

    # Regions -----------------------------------------------------------------------------------

    def region_op(self, item: LocalOp) -> None:
        """Sets the kinds of the values in an op's regions, and of its results."""
        edges = self.partition.rules[item.op.id].data_flow
        kept = len(self.meetings)
        for operand, region, argument, _ in edges.inputs:
            self._enter(item.regions[region].args[argument], self.kind(item.ins[operand]))
        for region, argument, other, source in edges.shared:
            given = item.regions[other].args[source]
            self._enter(item.regions[region].args[argument], self.kind(given))
        while True:
            del self.meetings[kept:]
            for body in item.regions:
                self._region(body)
            before = [self.of[a.id] for r in item.regions for a in r.args]
            for at, result, to, place in edges.carries:
                kind = self.kind(item.regions[at].results[result])
                self._join(item.regions[to].args[place], kind, item.op)
            if before == [self.of[a.id] for r in item.regions for a in r.args]:
                break
        self._decide(item, edges)
        for out in item.outs:
            self.of[out.id] = ZERO
        for at, result, place, _ in edges.outputs:
            self._join(item.outs[place], self.kind(item.regions[at].results[result]), item.op)
        for at, argument, place in edges.finals:
            self._join(item.outs[place], self.of[item.regions[at].args[argument].id], item.op)

    def _enter(self, argument: LocalValue, kind: str) -> None:
        self.of[argument.id] = TILE if self.tiled(argument) else kind

    def _join(self, local: LocalValue, kind: str, op: Op) -> None:
        """Gives a local value a second kind; zeros take any kind."""
        known = self.of[local.id]
        if self.tiled(local):
            self.of[local.id] = TILE
        elif known == ZERO:
            self.of[local.id] = kind
        elif kind not in (ZERO, known):
            self.meet(op, local)

    def _decide(self, item: LocalOp, edges: DataFlowEdges) -> None:
        """Records pending reductions read to choose a region, or its number of runs.

        In a loop over examples a part stops when its own examples have finished.
        """
        if edges.examples:
            return
        entering = {edge.operand for edge in edges.inputs}
        deciding = [x for i, x in enumerate(item.ins) if i not in entering]
        leaving = {(e.region, e.region_result) for e in edges.outputs}
        leaving |= {(e.region, e.region_result) for e in edges.carries}
        for at, region in enumerate(item.regions):
            deciding += [x for i, x in enumerate(region.results) if (at, i) not in leaving]
        for x in deciding:
            if isinstance(x, LocalValue) and self.kind(x) in PENDING:
                self.meet(item.op, x)

    def _region(self, body: LocalRegion) -> None:
        for item in body.steps:
            if isinstance(item, Reshard):
                self._reshard(item)
            elif item.regions:
                self.region_op(item)
            else:
                self._op(item)

    def _op(self, item: LocalOp) -> None:
        pending = [x for x in item.ins if self.kind(x) in PENDING and isinstance(x, LocalValue)]
        if not pending or self.partition.loops[self.axis][item.op.id] >= 0:
            if pending:
                self.meet(item.op, pending[0])
            self.made(item)
            return
        found, ids = self.kind(pending[0]), {x.value.id for x in pending}
        alike = all(self.kind(x) == found for x in pending)
        if not alike or not self.passes(item, found, ids):
            self.meet(item.op, pending[0])
            found = WHOLE
        for out in item.outs:
            self.of[out.id] = found
            self.follow(out, pending[0])

    def _reshard(self, item: Reshard) -> None:
        step, kind = item.step, self.kind(item.source)
        if isinstance(step, AllReduce):
            self.of[item.target.id] = step.monoid
            self.follow(item.target, item.source)
            return
        if not self.moves_rows(item) or kind in PENDING:
            self.meet(item.op, item.source)
        self.of[item.target.id] = TILE if self.tiled(item.target) else WHOLE
