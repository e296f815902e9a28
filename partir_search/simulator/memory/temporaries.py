"""Temporaries of one block beside the values that the program stores: copies, waiting values."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

import numpy as np

from partir_search.ir.blockwise import Blockwise
from partir_search.ir.core import Op, Value
from partir_search.ir.partition import Partition
from partir_search.ir.rule import NONE
from partir_search.lowering.local_ir import Apply, Move
from partir_search.lowering.passing import Passing
from partir_search.lowering.reshard import Shuffle
from partir_search.lowering.scheduling.delay import in_turns
from partir_search.lowering.slots import Slot
from partir_search.simulator.memory.buffers import Floats, Ints
from partir_search.simulator.program_model import Price, ProgramModel


class Held:
    """Bytes beside those of the model's curve, by position of the block's ops.

    Attributes:
      extra: [ops + 2] bytes; the last two at the results, and before all ops.
    """

    def __init__(
        self,
        model: ProgramModel,
        partition: Partition,
        nbytes: Floats,
        members: Ints,
        spent: Sequence[float],
    ) -> None:
        """Nothing yet.

        Args:
          nbytes: [values] local bytes.
          members: ids of the block's ops.
          spent: [ops + 1] seconds of compute before each.
        """
        self._model, self._partition, self._nbytes = model, partition, nbytes
        self._members, self._spent = members, spent
        self._position = partition.index.position
        self.extra: Floats = np.zeros(len(members) + 2)
        self._copies: dict[int, tuple[float, int]] = {}  # by slot: bytes, and the last use so far
        self._sent: dict[int, tuple[int, Op]] = {}  # by value that only collectives store
        self._passed: dict[int, Op] = {}  # by operand that rings made a value of: the last ring
        self._ring: Op | None = None  # the last one

    def passes(self, move: Move, at: int) -> None:
        """A block moves on around a ring: one copy is in use and one on its way, never more."""
        if move.turn <= 2:
            self.extra[at] += move.target.nbytes * self._model.width(move)

    def moves(self, move: Move, price: Price, at: int, argument: bool) -> None:
        """A value is moved.

        Args:
          argument: whether it is one of the block's.
        """
        for piece in move.blocks:
            self._use(piece, at)
        source, target, step = move.source, move.target, move.step
        together = self._model.inside.at_once(move.op, source.value)
        if argument and move.rests and isinstance(step.detail, Shuffle):
            # Blocks of an argument where rings use them, beside the argument.
            last = self._model.last_use[target.value.id]
            self.extra[at : max(at, last) + 1] += target.nbytes
        if step.monoid and source.value.id in self._model.cuts.summed:
            self.extra[at] += self._nbytes[source.value.id] * together
        if step.kind == "all_gather" and move.op is not None and not argument:
            self._send(source, move.op, price, at)
            traits = self._model.machine.traits
            if move.again and traits.async_all_gather != "never":
                self._wait(move, move.op, price, at)
        if move.rests or step.kind == "reduce_scatter":
            if target.nbytes != source.nbytes:
                self.extra[at - 1] += source.nbytes * together  # beside the value at rest
        elif target.nbytes > source.nbytes or step.detail is not None:
            size = target.nbytes * price.width * together
            self._copies[target.id] = size, at
            self.extra[at] += size

    def reads(self, item: Apply, at: int) -> None:
        """An op, or one turn of it, reads its operands."""
        for source in item.ins:
            if isinstance(source, Slot):
                self._use(source, at)
        how = self._partition.rules[item.op.id].blockwise
        if how and item.turn + 1 == item.turns:
            self.extra[at] += self._scratch(item, how)

    def ends(self, item: Apply, at: int) -> None:
        """The last turn of a ring."""
        if in_turns(item):
            self._keep_operands(item.op)
            self._put_off(item.op)
        for out in item.outs if item.part is None else ():
            # The sum so far and the turn's product, in 32 bits.
            size = max(out.value.type.itemsize, 1)
            self.extra[at] += out.nbytes * (2 * max(4, size) - size) / size

    def _use(self, slot: Slot, at: int) -> None:
        if slot.id in self._copies:
            size, until = self._copies[slot.id]
            self.extra[until + 1 : at + 1] += size
            self._copies[slot.id] = size, at

    def _send(self, shard: Slot, op: Op, price: Price, at: int) -> None:
        """A value that is fused into its users elsewhere is stored to be gathered, and kept if it
        is gathered again.
        """
        v = shard.value.id
        if self._model.stored[v]:
            return
        size, before = shard.nbytes * price.width, self._sent.get(v)
        if before and op.backward and not before[1].backward:
            size *= op.count  # those of all layers, by the end of the forward pass
        self.extra[before[0] + 1 if before else at : at + 1] += size
        self._sent[v] = at, op

    def _wait(self, move: Move, op: Op, price: Price, at: int) -> None:
        """A gather that is made again for a product begins about when the product's other operand
        is there. If nothing waits for the product, XLA puts it off, with what it reads, until
        others have run beside the gather.
        """
        model, spent = self._model, self._spent
        if not model.contracts[op.id]:
            return
        others = [v for _, v in op.inputs() if v.id != move.source.value.id]
        begun = max((self._made(v) for v in others), default=0)
        size = move.target.nbytes * price.width
        self.extra[begun:at] += size
        if not all(r.id in model.unawaited for r in op.results):
            return
        overlap = model.machine.traits.regather_overlap_ratio
        left = overlap * price.seconds - (spent[at] - spent[begun])
        until = bisect.bisect_left(spent, spent[at + 1] + left, lo=at + 1, hi=len(spent) - 1)
        dying = (v.id for v in others if model.last_use[v.id] == at and model.stored[v.id])
        self.extra[at + 1 : until] += size + sum(float(self._nbytes[v]) for v in dying)

    def _made(self, v: Value) -> int:
        """Position of the op that makes a value, 0 if it is none of the block's."""
        made = self._model.made[v.id]
        at = int(self._position[made]) if made != NONE else 0
        return at if at < len(self._members) and self._members[at] == made else 0

    def _keep_operands(self, op: Op) -> None:
        """Adds operands of a ring that are fused into their users elsewhere: what passes around or
        is worked on in parts is a value, and kept for the next ring that passes it.
        """
        for v in dict.fromkeys(v for _, v in op.inputs()):
            size = self._passed_bytes(v)
            if self._model.stored[v.id] or not size:
                continue
            at, before = int(self._position[op.id]), self._passed.get(v.id)
            if before and op.backward and not before.backward:
                size *= op.count  # those of all layers, by the end of the forward pass
            self.extra[int(self._position[before.id]) + 1 if before else at : at + 1] += size
            self._passed[v.id] = op

    def _put_off(self, op: Op) -> None:
        """Adds what the ring before used last: it may be put off until this one is done."""
        before, self._ring = self._ring, op
        if before is not None:
            at, used = int(self._position[op.id]), int(self._position[before.id])
            for v in dict.fromkeys(v for _, v in before.inputs()):
                if self._model.last_use[v.id] == used:
                    self.extra[used + 1 : at + 1] += self._passed_bytes(v)

    def _passed_bytes(self, v: Value) -> float:
        """Bytes of a value as a product reads it; 0 for arguments that it reads as they are."""
        width = self._model.product_width(v)
        copied = self._model.made[v.id] != NONE or width < 1.0
        return float(self._nbytes[v.id]) * width if copied else 0.0

    def _scratch(self, item: Apply, how: Blockwise) -> float:
        """Bytes that are there during one turn of an op that works on blocks."""
        sizes = self._partition.rules[item.op.id].sizes
        tiles = [self._partition.tiles_of(item.op, f) for f in how.scratch_factors]
        points = math.prod(sizes[f] for f in how.scratch_factors) / math.prod(tiles)
        part = item.part
        parts = part.parts * (1 + part.zigzag) if isinstance(part, Passing) else 1
        return how.scratch * points / (item.turns * parts)
