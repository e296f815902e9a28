"""The device-local program: instructions of one device, with explicit collectives.

The simulator prices the instructions and `emit` turns the same instructions into jax. Passes of
`lowering/scheduling/` set the `Scheduling` of instructions; `lowering/local_printer.py` has the
grammar.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Union

from partir_search.ir.core import Op, Region
from partir_search.ir.manual import OwnCollective
from partir_search.ir.partition import Partition
from partir_search.ir.rule import OpRule
from partir_search.lowering.collective_matmul import PARTIAL_RESULT, MatmulRing
from partir_search.lowering.local_value import LocalValue, Source
from partir_search.lowering.reshard_steps import HaloPermute, Permute, ReshardStep
from partir_search.lowering.traits import LoweringTraits


@dataclasses.dataclass(frozen=True, slots=True)
class Scheduling:
    """Order and form of one instruction, set by passes of `lowering/scheduling/`.

    Attributes:
      after: values awaited by the instruction.
      operands_after: values awaited by the instruction and by later readers of the operands.
      before: values whose later readers wait for the instruction, as do later readers of the
        results; None for no order.
      barrier: values behind one barrier with the source, against common-subexpression elimination;
        () for the source alone, None for no barrier.
      row_major: results with a row-major layout in memory, dims of one element outermost.
      by_columns: results with the last dim outermost in memory, the others in order.
      in_order: results with dims from major to minor in memory, those of one element too.
      tiles_first: True for a reduce_scatter whose dim is first transposed to the front.
    """

    after: tuple[LocalValue, ...] = ()
    operands_after: tuple[LocalValue, ...] = ()
    before: tuple[LocalValue, ...] | None = None
    barrier: tuple[LocalValue, ...] | None = None
    row_major: tuple[LocalValue, ...] = ()
    by_columns: tuple[LocalValue, ...] = ()
    in_order: tuple[LocalValue, ...] = ()
    tiles_first: bool = False


UNSCHEDULED = Scheduling()


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Reshard:
    """One step of a redistribution.

    Attributes:
      step: the collective, or the step on one device.
      source / target: the value before and after.
      op: op that reads or makes the value; None for results of the program.
      regather: True if the step repeats an earlier one, to keep the target's lifetime short.
      to_home: True if the target is the value in its home layout, not a copy.
      received: blocks joined to the source by a `Halo`.
      shared: True if all programs of a search share the object.
      scheduling: order and form of the instruction.
    """

    step: ReshardStep
    source: LocalValue
    target: LocalValue
    op: Op | None
    regather: bool = False
    to_home: bool = False
    received: tuple[LocalValue, ...] = ()
    shared: bool = False
    scheduling: Scheduling = UNSCHEDULED

    @property
    def outs(self) -> tuple[LocalValue, ...]:
        """Local values made: the target."""
        return (self.target,)

    def details(self) -> Iterator[str]:
        """Attributes as printed, received blocks apart."""
        if self.regather:
            yield "regather"

    @property
    def payload_bytes(self) -> int:
        """Bytes on the device of the larger of source and target, the usual size of a collective.

        For a permute, the bytes of the target.
        """
        if isinstance(self.step, (Permute, HaloPermute)):
            return self.target.nbytes
        return max(self.source.nbytes, self.target.nbytes)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class RingReshard(Reshard):
    """Permute of a ring, in flight during the turn that precedes `turn`."""

    step: Permute
    op: Op
    turn: int = dataclasses.field(kw_only=True)

    def details(self) -> Iterator[str]:
        yield f"turn {self.turn}"
        yield from Reshard.details(self)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class LocalOp:
    """An op on local tiles.

    Attributes:
      ins / outs: operands and results on the device.
      regions: one local region per region of the op.
    """

    op: Op
    ins: tuple[Source, ...]
    outs: tuple[LocalValue, ...]
    regions: tuple[LocalRegion, ...] = ()
    scheduling: Scheduling = UNSCHEDULED

    @property
    def received(self) -> tuple[LocalValue, ...]:
        """Partial results received from a neighbour, added to the op's own."""
        return ()

    def details(self) -> Iterator[str]:
        """Attributes as printed, received values apart."""
        return iter(())


@dataclasses.dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ChunkedOp(LocalOp):
    """A blockwise op on one device, run over `chunks` chunks in sequence."""

    chunks: int

    def details(self) -> Iterator[str]:
        yield f"chunks {self.chunks}"


@dataclasses.dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class RingTurn(LocalOp):
    """One of several turns of an op; results of the turns are summed or joined.

    Attributes:
      turn: index of the turn, from 0.
      turns: number of turns.
      arrived: partial results received from a neighbour, added to the turn's own.
    """

    turn: int
    turns: int
    arrived: tuple[LocalValue, ...] = ()

    @property
    def received(self) -> tuple[LocalValue, ...]:
        return self.arrived

    def details(self) -> Iterator[str]:
        yield f"turn {self.turn + 1} of {self.turns}"

    @property
    def last(self) -> bool:
        """True for the last turn."""
        return self.turn + 1 == self.turns


@dataclasses.dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class SkewedTurn(RingTurn):
    """One turn of a product on two axes and a diagonal (`ir/skewed_schedule.py`)."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class MatmulTurn(RingTurn):
    """One turn of a collective matmul, on the block `offset` from the device's own."""

    ring: MatmulRing
    offset: int

    def details(self) -> Iterator[str]:
        yield from RingTurn.details(self)
        yield f"block {self.offset:+d}"

    @property
    def passes_results(self) -> bool:
        """True if partial results move, not an operand."""
        return self.ring.moving == PARTIAL_RESULT

    def assembles(self, rule: OpRule) -> bool:
        """True if each turn makes a different block of the result, False if turns are summed."""
        return not self.passes_results and self.ring.factor in rule.results[0]


@dataclasses.dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class AttentionTurn(RingTurn):
    """One turn of ring attention, on the block `offset` from the device's own.

    Attributes:
      axes: mesh axes of the ring, major to minor: one axis of the user, possibly as sub-axes.
      offset: distance of the block from the device's own, in blocks.
      moving: positions of operands whose blocks move; the turn slices the stationary operands.
      zigzag: True if a block is two chunks of the sequence (`lowering/zigzag.py`).
      chunks: number of chunks of a block, run in a loop.
      arrived: partial sums of the block, by position among the returning results.
    """

    axes: tuple[int, ...]
    offset: int
    moving: tuple[int, ...]
    zigzag: bool
    chunks: int

    def details(self) -> Iterator[str]:
        yield from RingTurn.details(self)
        yield f"block {self.offset:+d}"
        if self.zigzag:
            yield "zigzag"
        if self.chunks > 1:
            yield f"chunks {self.chunks}"

    @property
    def share(self) -> float:
        """Computed fraction of a block's pairs of queries and keys."""
        return 1.0 if not self.zigzag else 0.5 if self.offset else 0.75


Instruction = Union[Reshard, LocalOp]


@dataclasses.dataclass(eq=False, slots=True)
class LocalRegion:
    """A region on one device.

    Attributes:
      region: the region of the module.
      args: arguments.
      steps: instructions in order.
      results: results in their layouts outside of the region.
    """

    region: Region
    args: Sequence[LocalValue]
    steps: list[Instruction]
    results: Sequence[Source]


@dataclasses.dataclass(eq=False, slots=True)
class LocalProgram:
    """The module on one device.

    Attributes:
      partition: the lowered partition.
      body: local region of the module's body.
      constants: closed-over arrays by value id: large ones in their home layouts, small ones
        replicated.
      results_after: (position of a result, argument); the result waits for the argument's readers.
      traits: traits of the compiler for which the program is scheduled; None before scheduling.
    """

    partition: Partition
    body: LocalRegion
    constants: dict[int, LocalValue]
    results_after: tuple[tuple[int, LocalValue], ...] = ()
    traits: LoweringTraits | None = None

    @property
    def lifted(self) -> list[int]:
        """Value ids of the constants passed after the arguments."""
        return self.partition.module.large_constants()

    @property
    def size(self) -> int:
        """Number of instructions; a loop's instructions count once."""
        return _size(self.body)

    def instructions(self) -> Iterator[tuple[Instruction, int]]:
        """(instruction, number of runs per program) pairs."""
        yield from _instructions(self.body, 1, self.partition.rules)

    def reshards(self) -> Iterator[tuple[Reshard, int]]:
        """(reshard, number of runs per program) pairs."""
        return ((item, n) for item, n in self.instructions() if isinstance(item, Reshard))

    def own_collectives(self) -> Iterator[tuple[OwnCollective, Op, int]]:
        """(collective, op, number of runs per program) of the user's own `shard_map` regions."""
        for item, times in self.instructions():
            if isinstance(item, LocalOp) and (manual := self.partition.rules[item.op.id].manual):
                for c in manual.collectives:
                    yield c, item.op, times * c.times


def _size(body: LocalRegion) -> int:
    inner = (b for item in body.steps if isinstance(item, LocalOp) for b in item.regions)
    return len(body.steps) + sum(map(_size, inner))


def _instructions(
    body: LocalRegion, times: int, rules: Sequence[OpRule]
) -> Iterator[tuple[Instruction, int]]:
    for item in body.steps:
        yield item, times
        if isinstance(item, LocalOp) and item.regions:
            trip_counts = rules[item.op.id].data_flow.trip_counts
            for inner, trips in zip(item.regions, trip_counts, strict=True):
                yield from _instructions(inner, times * trips, rules)
