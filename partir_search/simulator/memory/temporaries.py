"""Temporaries of redistribution: memory beside the stored values of a program.

Temporaries are copies made by reshards, values with a longer life because a gather delays their
dot, blocks and operands of rings, images padded for a convolution (`XlaTraits.pads_images`), and
updates of scatters before their dims are joined (`XlaTraits.tile_sublanes`).
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Sequence, Set

import numpy as np

from partir_search.ir.blockwise import Blockwise
from partir_search.ir.core import Op, Value
from partir_search.ir.partition import Partition
from partir_search.ir.role import Role
from partir_search.ir.rule import NONE, OpRule
from partir_search.lowering.local_ir import (
    AttentionTurn,
    ChunkedOp,
    LocalOp,
    Reshard,
    RingReshard,
    RingTurn,
    SkewedTurn,
)
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.reshard_steps import (
    AllGather,
    AllReduce,
    Permute,
    ReduceScatter,
    Reduction,
)
from partir_search.simulator.arrays import Floats
from partir_search.simulator.memory.model import MemoryModel
from partir_search.simulator.memory.recomputed_reads import last_read, stored_source
from partir_search.simulator.printing import table
from partir_search.simulator.program_facts import ProgramFacts
from partir_search.simulator.schedule import ScheduledRegion
from partir_search.simulator.target.traits import XlaTraits
from partir_search.simulator.time.collective_cost import CollectiveCost, dot_read_width


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Temporaries:
    """Temporaries of one region on one device.

    Attributes:
      bytes_at: [ops + 2] bytes to add to the region's curve, by position; the last two entries are
        for the region's results and for the time before all ops.
      stored_casts: ids of weight casts that are stored, as a collective sends the cast in the
        region or in a region inside.
    """

    bytes_at: Floats
    stored_casts: Set[int]

    def __str__(self) -> str:
        rows = [(at, float(b)) for at, b in enumerate(self.bytes_at) if b]
        head = f"Temporaries: {len(self.stored_casts)} casts stored"
        return table(head, ("position", "bytes"), rows)


def redistribution_temporaries(
    scheduled: ScheduledRegion,
    partition: Partition,
    nbytes: Floats,
    facts: ProgramFacts,
    memory: MemoryModel,
    reduced: Set[int],
    traits: XlaTraits,
) -> Temporaries:
    """Computes the temporaries of a scheduled region.

    Args:
      nbytes: [values] local bytes.
      reduced: ids of dots' results that the epilogue reduces (`FusionSplits.reduced`).
    """
    found = _Builder(scheduled, partition, nbytes, facts, memory, reduced, traits)
    return Temporaries(found.extra, found.stored_casts)


class _Builder:
    """Accumulator of a region's temporaries, over one pass of its schedule."""

    def __init__(
        self,
        scheduled: ScheduledRegion,
        partition: Partition,
        nbytes: Floats,
        facts: ProgramFacts,
        memory: MemoryModel,
        reduced: Set[int],
        traits: XlaTraits,
    ) -> None:
        self._shared = partition, nbytes, facts, memory, reduced, traits  # with inner regions
        self._partition, self._nbytes, self._facts = partition, nbytes, facts
        self._memory, self._reduced, self._traits = memory, reduced, traits
        self._members, self._spent = scheduled.members, scheduled.spent
        self._position = partition.def_use.position
        self.extra: Floats = np.zeros(len(scheduled.members) + 2)
        self.stored_casts: set[int] = set()
        self._copies: dict[int, tuple[float, int]] = {}  # by slot id: bytes, position of last use
        # By slot id of a copy: bytes without a function of the copy in their place.
        self._left: dict[int, float] = {}
        self._source: dict[int, Value] = {}  # by slot id of a copy: the stored value behind
        self._narrowed: dict[int, float] = {}  # by id of a stored value: bytes that a sum left out
        # By id of a stored value: users of copies, position of the last kernel to compute again,
        # and bytes added for the users.
        self._through: dict[int, tuple[int, int, float]] = {}
        # By id of a value that is stored for gathers alone: position and op of the last gather.
        self._sent: dict[int, tuple[int, Op]] = {}
        self._passed: dict[int, Op] = {}  # by id of a value stored for rings alone: the last ring
        self._ring: Op | None = None  # the last ring
        self._scattered = set[int]()  # ids of results of reduce_scatters
        # Bytes of the largest result of a collective on the chip.
        self._resident = traits.vmem_resident_fraction * memory.curve.vmem_bytes
        self._resident *= traits.async_all_gather == "since_source"
        for number, (item, at, cost, argument) in enumerate(scheduled.steps):
            if isinstance(item, Reshard):
                assert cost is not None
                if isinstance(item, RingReshard):
                    self._pass_on(item, cost, at)
                else:
                    self._reshard(item, cost, at, argument)
                continue
            self._read(item, at)
            if isinstance(item, RingTurn):
                if not item.last:
                    continue
                if isinstance(item, SkewedTurn):
                    self._end_ring(item, at)
            if item.regions:
                self.extra[at] += self._regions(scheduled, number, item)

    def _regions(self, scheduled: ScheduledRegion, number: int, item: LocalOp) -> float:
        """Peak bytes inside the regions that run of instruction number `number`."""
        peak = 0.0
        curves = self._memory.regions.curves[item.op.id]
        for (inside, trips), curve in zip(scheduled.inner[number], curves, strict=True):
            if not trips:
                continue
            live, most = curve.cached_bytes_at(self._nbytes)
            if inside is not None:
                inner = _Builder(inside, *self._shared)
                self.stored_casts |= inner.stored_casts
                extra = inner.extra[curve.position]
                most = float(np.max(live + extra, initial=0.0))
            peak = max(peak, most)
        return peak

    def _pass_on(self, reshard: RingReshard, cost: CollectiveCost, at: int) -> None:
        """Adds a block passed on by a ring: two copies, one in use and one being received."""
        if reshard.turn <= 2:
            self.extra[at] += reshard.target.nbytes * cost.width

    def _reshard(self, reshard: Reshard, cost: CollectiveCost, at: int, argument: bool) -> None:
        """Adds the copy made by a reshard.

        Args:
          argument: True if the reshard's source is an argument of the region.
        """
        for piece in reshard.received:
            self._use(piece, at)
        source, target, step = reshard.source, reshard.target, reshard.step
        if step.communicates and not isinstance(step, Reduction):
            self.stored_casts |= self._memory.casts.stored_with(source.value.id)
        together = self._memory.regions.instances_in_flight(reshard.op, source.value)
        if argument and reshard.to_home and isinstance(step, Permute):
            # The argument keeps its buffer: its blocks in the order of a ring are a second copy.
            last = self._facts.last_use[target.value.id]
            self.extra[at : max(at, last) + 1] += target.nbytes
        reduced = isinstance(step, Reduction) and source.value.id in self._reduced
        if reduced and source.value.id not in self._memory.wide_forward:
            # A wide copy, which the curve counts, is made of the reduced value alone.
            self.extra[at] += self._nbytes[source.value.id] * together
        if isinstance(step, Reduction) and source.value.id in self._memory.overwritten:
            # The epilogue is a second kernel: no dot writes into the operand's buffer.
            kept, last = self._memory.overwritten[source.value.id]
            self.extra[at : last + 1] += self._nbytes[kept] * together
        if isinstance(step, AllReduce):
            self._narrow(source.value, at)
        if isinstance(step, AllGather) and reshard.op is not None and not argument:
            self._send(source, reshard.op, cost, at)
            if reshard.regather and self._traits.async_all_gather != "never":
                self._wait(reshard, reshard.op, cost, at)
        if reshard.to_home or isinstance(step, ReduceScatter):
            # Consumers that recompute a value recompute the slice that they read.
            recomputed = not step.communicates and not self._memory.stored[source.value.id]
            if isinstance(step, ReduceScatter):
                self._scattered.add(target.id)
                recomputed |= source.id in self._scattered and source.nbytes <= self._resident
            if target.nbytes != source.nbytes and not recomputed:
                self.extra[at - 1] += source.nbytes * together  # beside the value
        elif target.nbytes > source.nbytes or step.copies:
            size = target.nbytes * cost.width * together
            self._copies[target.id] = size, at
            self._left[target.id] = size
            origin = None if argument else self._origin(source.value)
            if origin is not None:
                self._source[target.id] = origin
            self.extra[at] += size

    def _narrow(self, v: Value, at: int) -> None:
        """Takes off the bytes saved by an all_reduce with a result in 16 bits.

        XLA:TPU finishes f32 sums for dots and casts alone in 16 bits (`f32_dot_operand_bytes`).
        Only results of loops are stored in f32 before.
        """
        width, memory = self._traits.dot_operand_width, self._memory
        wide = width < 1.0 and memory.stored[v.id] and memory.width[v.id] == 1.0
        if wide and self._facts.for_dots[v.id]:
            last = last_read(v, self._facts.def_use, self._position, memory.read_until)
            saved = self._narrowed[v.id] = (1.0 - width) * float(self._nbytes[v.id])
            self.extra[at + 1 : last + 1] -= saved

    def _origin(self, v: Value) -> Value | None:
        return stored_source(v, self._facts.def_use, self._memory.stored)

    def _read(self, item: LocalOp, at: int) -> None:
        """Extends the life of the copies read by an op or by a turn of an op."""
        for source in item.ins:
            if isinstance(source, LocalValue):
                self._use(source, at)
        if self._facts.elementwise[item.op.id]:
            copies = [x.id for x in item.ins if isinstance(x, LocalValue) and x.id in self._left]
            if copies:
                self._recompute(item, at, copies)
        rule = self._partition.rules[item.op.id]
        if rule.explicit_padding > 1.0 and self._traits.pads_images and not item.op.backward:
            image = item.ins[0]
            if isinstance(image, LocalValue):
                self.extra[at] += rule.explicit_padding * image.nbytes
        if rule.role is Role.SCATTER and self._traits.tile_sublanes > 1:
            self._join_rows(item, rule)
        how = rule.blockwise
        if how and (not isinstance(item, RingTurn) or item.last):
            self.extra[at] += self._scratch(item, how)

    def _join_rows(self, item: LocalOp, rule: OpRule) -> None:
        """Adds the updates of a scatter in the dims of the program, at the op of the updates.

        A scatter reads its updates as one dim of rows. To join the dims of several indices is a
        copy if the innermost of them fills no tiles: bags of 20 rows f32[8192,20,128] are stored in
        24 sublanes, and copied to f32[163840,128].
        """
        updates, dims = item.ins[-1], rule.operands[-1]
        if not isinstance(updates, LocalValue) or len(dims) < 3:
            return
        *_, rows, lanes = updates.shape
        tile = min(self._traits.tile_sublanes, 1 << max(rows - 1, 0).bit_length())
        full, kept = -(-rows // tile) * tile, set(rule.results[0])
        of_rows = dims[-1] in kept and not kept & set(dims[:-1])
        copied = of_rows and full > rows and not lanes % self._traits.tile_lanes
        if copied and self._memory.stored[updates.value.id]:
            self.extra[self._made(updates.value)] += updates.nbytes * full / rows

    def _end_ring(self, item: SkewedTurn, at: int) -> None:
        """Adds the operands and sums of a ring, at the ring's last turn."""
        self._keep_operands(item.op)
        self._defer(item.op)
        for out in item.outs:
            # The partial sum and the product of a turn, both in at least 32 bits.
            size = max(out.value.type.itemsize, 1)
            self.extra[at] += out.nbytes * (2 * max(4, size) - size) / size

    def _use(self, local: LocalValue, at: int) -> None:
        """Extends the life of a copy to its use at a position."""
        if local.id in self._copies:
            size, until = self._copies[local.id]
            self.extra[until + 1 : at + 1] += self._left[local.id]
            self._copies[local.id] = size, at

    def _recompute(self, item: LocalOp, at: int, copies: Sequence[int]) -> None:
        """Adds the copies behind an op's results, or the results where smaller.

        Both live until the last kernel to compute with the results.

        Args:
          copies: ids of the copies that the op reads.
        """
        until = max((self._memory.read_until[out.value.id] for out in item.outs), default=at)
        if until <= at:
            return
        size = min(sum(out.nbytes for out in item.outs), sum(self._left[c] for c in copies))
        for copy in copies:
            self._left[copy] = max(0.0, self._left[copy] - size)
        layers = 1
        if self._facts.module.body.ops[until].backward and not item.op.backward:
            layers = item.op.count  # at the end of the forward pass those of all layers are live
        self.extra[at + 1 : until + 1] += size * layers
        for copy in copies:
            if copy in self._source:
                self._release(self._source[copy].id, at, until, size * layers, layers)

    def _release(self, v: int, at: int, until: int, size: float, layers: int) -> None:
        """Ends the life of a stored value whose users all read a copy of the value instead.

        Args:
          size: bytes added for the last user.
          layers: number of the original's values behind value `v`.
        """
        users, last, kept = self._through.get(v, (0, 0, 0.0))
        users, last, kept = users + 1, max(last, until), kept + size
        self._through[v] = users, last, kept
        if users == self._facts.def_use.counts[v]:
            left = float(self._nbytes[v]) * layers - self._narrowed.get(v, 0.0)
            self.extra[at + 1 : last + 1] -= min(kept, left)

    def _send(self, shard: LocalValue, op: Op, cost: CollectiveCost, at: int) -> None:
        """Adds a shard stored for a gather alone: consumers recompute the value otherwise.

        A shard with a second gather is live from the first gather to the second. The
        result of an all_reduce in 16 bits is a shard already.
        """
        v, origin = shard.value.id, self._origin(shard.value)
        if self._memory.stored[v] or (origin is not None and origin.id in self._narrowed):
            return
        size, before = shard.nbytes * cost.width, self._sent.get(v)
        if before and op.backward and not before[1].backward:
            size *= op.count  # at the end of the forward pass the shards of all layers are live
        self.extra[before[0] + 1 if before else at : at + 1] += size
        self._sent[v] = at, op

    def _wait(self, reshard: Reshard, op: Op, cost: CollectiveCost, at: int) -> None:
        """Adds an operand gathered a second time for a dot.

        The gather starts as soon as the dot's second operand is made. XLA defers a dot off the
        critical path, with both operands, until `XlaTraits.regather_overlap_ratio` times the
        gather's seconds of compute have run beside the gather. Until then, copies of up to
        `XlaTraits.vmem_resident_fraction` lie on the chip.
        """
        facts, spent = self._facts, self._spent
        if not facts.contracts[op.id]:
            return
        others = [v for _, v in op.inputs() if v.id != reshard.source.value.id]
        start = max((self._made(v) for v in others), default=0)
        size = reshard.target.nbytes * cost.width
        if size > self._resident:
            self.extra[start:at] += size
        if not all(r.id in facts.off_critical_path for r in op.results):
            return
        left = self._traits.regather_overlap_ratio * cost.seconds - (spent[at] - spent[start])
        until = bisect.bisect_left(spent, spent[at + 1] + left, lo=at + 1, hi=len(spent) - 1)
        dying = (v.id for v in others if facts.last_use[v.id] == at and self._memory.stored[v.id])
        self.extra[at + 1 : until] += size + sum(float(self._nbytes[v]) for v in dying)

    def _made(self, v: Value) -> int:
        """Position of the op that makes a value, 0 if the op is outside of the region."""
        made = self._facts.def_use.maker_ids[v.id]
        at = int(self._position[made]) if made != NONE else 0
        return at if at < len(self._members) and self._members[at] == made else 0

    def _keep_operands(self, op: Op) -> None:
        """Adds operands stored for a ring alone: consumers recompute the values otherwise.

        An operand of two rings is live from the first ring to the second.
        """
        for v in dict.fromkeys(v for _, v in op.inputs()):
            size = self._passed_bytes(v)
            if self._memory.stored[v.id] or not size:
                continue
            at, before = int(self._position[op.id]), self._passed.get(v.id)
            if before and op.backward and not before.backward:
                size *= op.count  # at the end of the forward pass those of all layers are live
            self.extra[int(self._position[before.id]) + 1 if before else at : at + 1] += size
            self._passed[v.id] = op

    def _defer(self, op: Op) -> None:
        """Adds operands of the previous ring, as XLA may defer that ring until this ring ends."""
        before, self._ring = self._ring, op
        if before is not None:
            at, used = int(self._position[op.id]), int(self._position[before.id])
            for v in dict.fromkeys(v for _, v in before.inputs()):
                if self._facts.last_use[v.id] == used:
                    self.extra[used + 1 : at + 1] += self._passed_bytes(v)

    def _passed_bytes(self, v: Value) -> float:
        """Bytes of a dot's operand in its storage dtype; 0 for arguments stored without a cast."""
        width = dot_read_width(v, self._traits)
        copied = self._facts.def_use.maker_ids[v.id] != NONE or width < 1.0
        return float(self._nbytes[v.id]) * width if copied else 0.0

    def _scratch(self, item: LocalOp, how: Blockwise) -> float:
        """Scratch bytes of one turn of a blockwise op."""
        sizes = self._partition.rules[item.op.id].sizes
        tiles = [self._partition.tiles_of(item.op, f) for f in how.scratch_factors]
        points = math.prod(sizes[f] for f in how.scratch_factors) / math.prod(tiles)
        turns, chunks = item.turns if isinstance(item, RingTurn) else 1, 1
        if isinstance(item, AttentionTurn):
            chunks = item.chunks * (1 + item.zigzag)
        elif isinstance(item, ChunkedOp):
            chunks = item.chunks
        width = how.stored if self._traits.fuses_attention_scores else how.scratch
        return width * points / (turns * chunks)
