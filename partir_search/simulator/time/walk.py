"""One walk over a device-local program: exposed communication and temporary copies."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from partir_search.ir.core import Op
from partir_search.ir.partition import Partition
from partir_search.ir.rule import NONE
from partir_search.lowering.collective_matmul import RESULT, Part
from partir_search.lowering.local_ir import Apply, Block, Move
from partir_search.lowering.passing import Passing
from partir_search.lowering.reshard import COLLECTIVES
from partir_search.rules.control_flow import flows_of
from partir_search.simulator.memory.buffers import Floats, Ints, points
from partir_search.simulator.memory.temporaries import Held
from partir_search.simulator.program_model import Price, ProgramModel
from partir_search.simulator.time.latency_hiding import Behind, Sending
from partir_search.simulator.time.permutes import Sent, permute_seconds


@dataclasses.dataclass(frozen=True, slots=True)
class Note:
    """Seconds of a collective in all its runs, and the exposed ones, which no compute hid."""

    kind: str
    axes: str
    seconds: float
    exposed: float
    source: str


class Walk:
    """Totals of a walk over a device-local program."""

    def __init__(
        self, model: ProgramModel, partition: Partition, nbytes: Floats, by_op: Floats
    ) -> None:
        self.model, self.mesh, self.nbytes, self.by_op = model, partition.mesh, nbytes, by_op
        self.index, self.rules = partition.index, partition.rules
        self.partition = partition
        self.exposed = 0.0
        self.passing: list[Sent] = []  # what moves on while turns of a ring work
        self.worked = 0.0  # seconds of these turns
        self.behind = Behind()  # of the region that is being looked at
        self.spared_seconds = self.spared_flops = 0.0  # of blocks that mask each other out
        self.sent_casts: set[int] = set()  # forms of arguments that are stored to be sent
        self.partial: dict[int, int] = {}  # by value, local bytes of partial sums that are sent
        self.cuts: dict[int, float] = {}  # by kernel, seconds that these cost it, when all is known
        self.copied = 0.0  # bytes moved because a copy is larger than its source
        self.by_axis: dict[str, float] = {}
        self.by_kind: dict[str, float] = {}
        self.notes: dict[int, list[Note]] | None = None  # by instruction of the body, if wanted
        self._at = -1  # the instruction of the body that is being looked at, by id
        self._depth = 0

    def note(
        self,
        kind: str,
        axes: str,
        seconds: float,
        exposed: float,
        source: str | Op | None,
        at: int | None = None,
    ) -> None:
        """Keeps what a collective took, if anyone wants to know (finding an op's line is dear)."""
        if self.notes is not None:
            source = source.source if isinstance(source, Op) else source or ""
            note = Note(kind, axes, seconds, exposed, source)
            self.notes.setdefault(self._at if at is None else at, []).append(note)

    def block(self, block: Block, times: float) -> Floats:
        """Adds up a block, sparse or not; returns extra live bytes by op position."""
        members, position = self.index.members[block.region], self.index.position
        by_op = self.by_op[members]
        spent = [0.0, *np.cumsum(by_op).tolist()]
        freed, last = self.freed(members, by_op, times)
        outer, self.behind = self.behind, Behind()
        held = Held(self.model, self.partition, self.nbytes, members, spent)
        available = set[int]()
        slack = 0.0
        at = seen = 0  # the next op's position, and up to where compute was added to the slack
        done: Op | None = None
        for item in block.steps:
            if not self._depth:
                self._at = id(item)
            if item.op is None:
                at = 0 if item.source.value.id in self.model.module.constants else len(members)
            elif item.op is not done:
                at = int(position[item.op.id])
            slack += spent[at] - spent[seen]
            if at != seen and freed:
                self.behind.work(freed[at] - freed[seen])
                if at > last:
                    self.behind.end()
            seen = at
            if isinstance(item, Move) and item.turn and item.op:
                self.pass_on(item, times * item.op.count)
                held.passes(item, at)
                continue
            if isinstance(item, Move):
                available = available or {s.id for s in block.args}
                count = times * self.model.inside.runs(item)
                argument = item.source.id in available
                price = self.model.price(item, self.mesh)
                early = slack if argument else min(slack, self.since(item, members, spent, at))
                slack = self.move(item, price, count, slack, argument, early)
                held.moves(item, price, at, argument)
                continue
            held.reads(item, at)
            if item.turns > 1:
                share = item.part.share if isinstance(item.part, Passing) else 1.0
                seconds = float(self.by_op[item.op.id]) / item.turns
                self.worked += share * seconds
                self.spare(item, (1.0 - share) / item.turns, times)
                if item.turn + 1 < item.turns:
                    continue
                self.arrive(times * item.op.count)
                if isinstance(item.part, Part):
                    self.copied += self.again(item, item.part) * times * item.op.count
                held.ends(item, at)
            if item.blocks:
                held.extra[at] += self.regions(item, times)
            elif item.op.id in self.model.manual:
                for own in self.model.manual[item.op.id]:
                    seconds, sent, name = self.model.own_seconds(own, self.mesh)
                    self.add(own.kind, name, sent, times * own.times * item.op.count)
                    taken = seconds * times * own.times * item.op.count
                    self.exposed += taken
                    self.note(own.kind, name, taken, taken, item.op)
            done = item.op
            at += 1
        if freed:
            self.behind.work(freed[len(members)] - freed[seen])
            self.behind.end()
        for s in self.behind.noted:
            self.exposed += s.left
            self.note(s.kind, s.axes, s.seconds, s.left, s.op, s.at)
        self.behind = outer
        return held.extra

    def freed(self, members: Ints, by_op: Floats, times: float) -> tuple[list[float], int]:
        """Seconds of products that nothing waits for before each op of a block, and where the last
        one is; an empty list if there are none.
        """
        if not self.model.machine.traits.defers_weight_gradients:
            return [], 0
        free = self.model.unawaited_runs[members]
        if not free.any():
            return [], 0
        sums = np.concatenate(([0.0], np.cumsum(by_op * free * times)))
        return sums.tolist(), int(np.flatnonzero(free)[-1]) + 1

    def spare(self, item: Apply, share: float, times: float) -> None:
        """A share of an op's work is not done."""
        if share:
            share *= times * item.op.count
            self.spared_seconds += share * float(self.by_op[item.op.id])
            rule = self.rules[item.op.id]
            tiles = math.prod(self.partition.tiles_of(item.op, f) for f in range(len(rule.sizes)))
            self.spared_flops += share * points(item.op, rule) / tiles

    def again(self, item: Apply, part: Part) -> float:
        """Bytes that the turns of a collective matmul move beyond what one product does."""
        (out,) = item.outs
        if part.assembles(self.rules[item.op.id]):
            return float(out.nbytes)  # nothing that follows is fused into the product
        if part.walk.moving == RESULT:
            return float(out.nbytes * (item.turns - 1))  # sums arrive
        return 2.0 * out.nbytes * (item.turns - 1)  # the sum so far is read and written

    def regions(self, item: Apply, times: float) -> float:
        """Peak bytes inside an op's regions."""
        peak = 0.0
        parts = self.model.inside.curves[item.op.id]
        trips = flows_of(item.op).trips
        self._depth += 1
        for block, curve, n in zip(item.blocks, parts, trips, strict=True):
            live, most = curve.kept_bytes_at(self.nbytes)
            if block.steps:
                extra = self.block(block, times * n)[curve.position]
                most = float(np.max(live + extra, initial=0.0))
            peak = max(peak, most)
        self._depth -= 1
        return peak

    def add(self, kind: str, axes: str, sent: float, times: float) -> None:
        self.by_axis[axes] = self.by_axis.get(axes, 0.0) + sent * times
        self.by_kind[kind] = self.by_kind.get(kind, 0.0) + sent * times

    def pass_on(self, move: Move, times: float) -> None:
        """A block that moves on while a turn of a ring works."""
        if self.worked:
            self.arrive(times)
        payload = move.payload_bytes * self.model.width(move)
        _, sent, name = self.model.transfer(move.step, payload, self.mesh)
        self.add(move.step.kind, name, sent, times)
        self.passing.append((move.step.detail.pairs, move.step.axes, payload))

    def arrive(self, times: float) -> None:
        """Ends the sends under way: their seconds count as far as no product ran meanwhile."""
        taken = permute_seconds(self.passing, self.mesh, self.model.machine)
        exposed = max(0.0, taken - self.worked)
        self.exposed += exposed * times
        if taken:
            axes = dict.fromkeys(self.mesh.names[a] for _, along, _ in self.passing for a in along)
            names = ",".join(axes)
            self.note("collective_permute", names, taken * times, exposed * times, "a ring's turn")
        self.passing, self.worked = [], 0.0

    def since(self, move: Move, members: Ints, spent: Sequence[float], at: int) -> float:
        """Seconds of compute between what makes a gather's source and what the gather is for."""
        if move.step.kind != "all_gather":
            return 0.0
        made = self.model.made[move.source.value.id]
        if made == NONE:
            return spent[at]
        first = int(self.index.position[made])
        here = first < at and members[first] == made
        return spent[at] - spent[first + 1] if here else 0.0

    def move(
        self,
        move: Move,
        price: Price,
        times: float,
        slack: float,
        argument: bool,
        early: float,
    ) -> float:
        """Adds the seconds and bytes of a collective; returns the slack that is left.

        Args:
          early: seconds before its user at which it may begin.
        """
        kind, model = move.step.kind, self.model
        self.copied += price.copied * times
        if kind not in COLLECTIVES:
            return slack
        seconds = price.seconds
        self.add(kind, price.axes, price.sent, times)
        if move.step.monoid:
            self.partial.setdefault(move.source.value.id, move.source.nbytes)
        else:
            self.sent_casts |= model.casts.of(move.source.value.id)
        traits = model.machine.traits
        prefetched = traits.async_all_gather == "since_source" or (
            argument and traits.async_all_gather == "arguments"
        )
        if kind == "all_gather" and prefetched:
            exposed = max(0.0, seconds - early) * times
            slack = max(0.0, slack - min(seconds, early))
        elif traits.defers_weight_gradients:
            total, op = seconds * times, move.op
            waits = move.source.value.id in model.unawaited
            layers = op.count if op and op.backward else 1
            found = Sending(kind, price.axes, total, total, op, self._at)
            self.behind.begin(found, waits=waits, layers=layers)
            return slack
        else:
            exposed = seconds * times
        self.exposed += exposed
        if self.notes is not None:
            self.note(kind, price.axes, seconds * times, exposed, move.op)
        return slack
