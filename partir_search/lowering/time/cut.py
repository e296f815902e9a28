"""Cut of a device-local program on a time axis: before, in and after the loop over parts.

Ops with a loop over the axis, in their regions too, are in the loop. Readers of a reduction over
the axis run after the loop, once, on the accumulated value. Further ops run before the loop if
needed in the loop, and after the loop otherwise. A reduction of data alone may be taken before the
loop, over the whole batch (`early`). A program whose loop needs a further reduction or gather over
the axis cannot be cut.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence, Set

from partir_search.ir.core import Value
from partir_search.lowering.local_ir import Instruction, LocalOp, LocalProgram, Reshard
from partir_search.lowering.local_value import LocalValue, Source
from partir_search.lowering.reshard_steps import AllGather, AllReduce, Mask, Slice
from partir_search.lowering.time.kinds import PENDING, TILE, WHOLE, Kinds, Meeting

DONE = "done"  # kind of a value that is known after the loop
LATE = (DONE, *PENDING)
IN, AFTER, EARLY, FREE = "in", "after", "early", "free"  # FREE: before if the loop needs it


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class TimeCut:
    """A device-local program on one time axis, cut at the loop over parts.

    Attributes:
      axis: the time axis.
      before / inside / after: instructions in order. Slices before the loop cut a whole value into
        parts; reductions and gathers after the loop finish an accumulation or a stack of parts. A
        looping op before the loop makes the whole value, to be cut into parts.
      kinds: kind of each local value made in the loop: TILE, the monoid of a pending reduction, or
        WHOLE for the same value in every part.
      early: by id of a local value, the module's value computed whole before the loop instead.
    """

    program: LocalProgram
    axis: int
    before: Sequence[Instruction]
    inside: Sequence[Instruction]
    after: Sequence[Instruction]
    kinds: Kinds
    early: dict[int, Value]

    @property
    def crossing(self) -> list[LocalValue]:
        """Values made in the loop and read later, or returned."""
        made = {out.id for item in self.inside for out in item.outs}
        read: list[Source] = [x for item in self.after for x in sources(item)]
        every = (*read, *self.program.body.results)
        found = {x.id: x for x in every if isinstance(x, LocalValue) and x.id in made}
        return list(found.values())


class PartsMeet(ValueError):
    """A program cannot be cut.

    Attributes:
      meeting: first place where parts meet.
    """

    def __init__(self, meeting: Meeting) -> None:
        super().__init__(meeting)
        self.meeting = meeting


def sources(item: Instruction) -> tuple[Source, ...]:
    """Local values and literals read by an instruction, without constants read in its regions."""
    return (item.source, *item.received) if isinstance(item, Reshard) else item.ins


def cut_in_time(program: LocalProgram, axis: int, data: Set[int]) -> TimeCut:
    """Cuts a program localized on a time axis alone.

    Args:
      data: ids of the values computed from data alone, with reductions before the loop if the
        program cannot be cut otherwise.

    Raises:
      PartsMeet: the loop needs a value of all parts.
    """
    try:
        return _Cutter(program, axis, frozenset()).cut()
    except PartsMeet:
        if not data:
            raise
    return _Cutter(program, axis, data).cut()


class _Cutter:
    """Places of the instructions of a program's body.

    Attributes:
      data: ids of the values whose reductions and gathers are taken before the loop.
      made_inside: ids of local values made in the loop.
    """

    def __init__(self, program: LocalProgram, axis: int, data: Set[int]) -> None:
        self.program, self.axis, self.data = program, axis, data
        self.kinds = Kinds(program.partition, axis)
        self.early: dict[int, Value] = {}
        self.made_inside: set[int] = set()

    def cut(self) -> TimeCut:
        """The cut."""
        steps = self.program.body.steps
        for argument in self.program.body.args:
            if self.kinds.tiled(argument):
                self.kinds.of[argument.id] = TILE
        places = []
        for item in steps:
            place = self._reshard(item) if isinstance(item, Reshard) else self._op(item)
            if place == IN:
                self.made_inside.update(out.id for out in item.outs)
            places.append(place)
        if self.kinds.meetings:
            raise PartsMeet(self.kinds.meetings[0])
        placed = list(zip(steps, places, strict=True))
        inside = [item for item, place in placed if place == IN]
        needed = {x.id for item in inside for x in sources(item) if isinstance(x, LocalValue)}
        before, after = list[Instruction](), list[Instruction]()
        for item, place in reversed(placed):
            if place == AFTER or (place == FREE and item.outs[0].id not in needed):
                after.append(item)
            elif place == FREE:
                before.append(item)
                needed.update(x.id for x in sources(item) if isinstance(x, LocalValue))
        return TimeCut(
            self.program, self.axis, before[::-1], inside, after[::-1], self.kinds, self.early
        )

    def _reshard(self, item: Reshard) -> str:
        source, target, of = item.source, item.target, self.kinds.of
        kind = self.kinds.kind(source)
        if isinstance(item.step, Mask):  # joins an accumulated sum once, after the loop
            of[target.id] = DONE
            return AFTER
        if kind == DONE:
            of[target.id] = DONE
            self.kinds.follow(target, source)
            return AFTER
        if source.value.id in self.data and not isinstance(item.step, Slice):
            self.early[target.id] = source.value
            return EARLY
        if self.kinds.moves_rows(item) and kind not in PENDING:
            of[target.id] = TILE if isinstance(item.step, Slice) else WHOLE
            return IN if source.id in self.made_inside else FREE
        of[target.id] = DONE
        self.kinds.follow(target, source)
        if isinstance(item.step, AllGather):
            self.kinds.gather(item)
        elif not isinstance(item.step, AllReduce):
            self.kinds.meet(item.op, source)
        return AFTER

    def _op(self, item: LocalOp) -> str:
        kinds, of = [self.kinds.kind(x) for x in item.ins], self.kinds.of
        late = [x for x in item.ins if isinstance(x, LocalValue) and self.kinds.kind(x) in LATE]
        parts = any(isinstance(x, LocalValue) and x.id in self.made_inside for x in item.ins)
        if self.kinds.loops(item) or ((TILE in kinds or parts) and not late):
            if late:
                self.kinds.meet(item.op, late[0])
            if item.regions:
                self.kinds.region_op(item)
            else:
                self.kinds.made(item)
            return FREE if not (parts or TILE in kinds) and self._only_whole(item) else IN
        for out in item.outs if late else ():
            of[out.id] = DONE
            self.kinds.follow(out, late[0])
        return AFTER if late else FREE

    def _only_whole(self, item: LocalOp) -> bool:
        """True if an op can make its result for the whole batch alone, not for some rows."""
        rule = self.program.partition.rules[item.op.id]
        made = all(self.kinds.kind(out) == TILE for out in item.outs)
        return made and not item.regions and rule.local is not None and rule.at_positions is None
