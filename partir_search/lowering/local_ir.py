"""The device-local program: instructions of one device, with explicit collectives.

The simulator prices these instructions and `emit` turns them into jax: the prediction is the
program. Passes of `lowering/scheduling/` set the `Scheduling` of instructions; see
`lowering/local_printer.py` for the grammar.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Union

from partir_search.ir.core import Op, Region
from partir_search.ir.manual import OwnCollective
from partir_search.ir.partition import Partition
from partir_search.ir.rule import OpRule
from partir_search.lowering.collective_matmul import RESULT, Walk
from partir_search.lowering.local_value import LocalValue, Source
from partir_search.lowering.reshard_steps import HaloPermute, Permute, ReshardStep
from partir_search.lowering.traits import LoweringTraits


@dataclasses.dataclass(frozen=True, slots=True)
class Scheduling:
    """Order and form of one instruction, as passes of `lowering/scheduling/` set them.

    Attributes:
      after: values that the instruction waits for.
      operands_after: values that the instruction waits for, and each later reader of its operands.
      before: values whose later readers wait for the instruction; its own results likewise. None
        for no order.
      barrier: values behind one barrier with the source, against common-subexpression elimination;
        () for the source alone, None for no barrier.
      row_major: results that are laid out row by row.
      tiles_first: True for a reduce_scatter along the leading dim, to which its dim is transposed.
    """

    after: tuple[LocalValue, ...] = ()
    operands_after: tuple[LocalValue, ...] = ()
    before: tuple[LocalValue, ...] | None = None
    barrier: tuple[LocalValue, ...] | None = None
    row_major: tuple[LocalValue, ...] = ()
    tiles_first: bool = False


UNSCHEDULED = Scheduling()


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Reshard:
    """One step of a redistribution, done for `op` (None: for the program's results).

    Attributes:
      regather: True for a step whose target was made before and given up. Merged with the earlier
        step, the target would live from there to here.
      to_home: True if the target is the value in its home layout, not a copy.
      received: blocks that a `Halo` joins to the source.
      shared: True if all programs of a search that have this step share this object.
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
        """The target."""
        return (self.target,)

    def details(self) -> Iterator[str]:
        """Attributes as printed, received blocks apart."""
        if self.regather:
            yield "regather"

    @property
    def payload_bytes(self) -> int:
        """Bytes of the larger side on the device: the size by which collectives are quoted."""
        if isinstance(self.step, (Permute, HaloPermute)):
            return self.target.nbytes
        return max(self.source.nbytes, self.target.nbytes)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class RingReshard(Reshard):
    """A permute of a ring, on its way while the turn before `turn` works."""

    step: Permute
    op: Op
    turn: int = dataclasses.field(kw_only=True)

    def details(self) -> Iterator[str]:
        yield f"turn {self.turn}"
        yield from Reshard.details(self)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class LocalOp:
    """An op on local tiles."""

    op: Op
    ins: tuple[Source, ...]
    outs: tuple[LocalValue, ...]
    blocks: tuple[Block, ...] = ()
    scheduling: Scheduling = UNSCHEDULED

    @property
    def received(self) -> tuple[LocalValue, ...]:
        """Partial results from a neighbour, which the op adds to."""
        return ()

    def details(self) -> Iterator[str]:
        """Attributes as printed, received values apart."""
        return iter(())


@dataclasses.dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ChunkedOp(LocalOp):
    """A blockwise op of one device, over `chunks` chunks one after the other."""

    chunks: int

    def details(self) -> Iterator[str]:
        yield f"chunks {self.chunks}"


@dataclasses.dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class RingTurn(LocalOp):
    """One of several turns of an op, whose results are summed or joined.

    Attributes:
      turn / turns: number of this turn, from 0, and of all turns.
      arrived: partial results received from a neighbour, which this turn adds to.
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
    """One turn of a product on two axes and their diagonal (`ir/skewed_schedule.py`)."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class MatmulTurn(RingTurn):
    """One turn of a collective matmul, on the block `offset` from the device's own."""

    walk: Walk
    offset: int

    def details(self) -> Iterator[str]:
        yield from RingTurn.details(self)
        yield f"block {self.offset:+d}"

    @property
    def passes_results(self) -> bool:
        """True if partial results move, not an operand."""
        return self.walk.moving == RESULT

    def assembles(self, rule: OpRule) -> bool:
        """True if turns of one device make different blocks of the result."""
        return not self.passes_results and self.walk.factor in rule.results[0]


@dataclasses.dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class AttentionTurn(RingTurn):
    """One turn of ring attention, on the block `offset` from the device's own.

    Attributes:
      axes: mesh axes of the ring, major to minor: an axis of the user's, perhaps as sub-axes.
      moving: positions of operands that are blocks; other operands are read at the block.
      zigzag: True if a block is two chunks of the sequence (`lowering/zigzag.py`).
      chunks: number of parts of a block, over which the turn loops.
      arrived: sums of the block so far, by position among the returning results.
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
        """Share of a block's pairs of queries and keys that is computed."""
        return 1.0 if not self.zigzag else 0.5 if self.offset else 0.75


Instruction = Union[Reshard, LocalOp]


@dataclasses.dataclass(eq=False, slots=True)
class Block:
    """A region on one device."""

    region: Region
    args: tuple[LocalValue, ...]
    steps: list[Instruction]
    results: tuple[Source, ...]


@dataclasses.dataclass(eq=False, slots=True)
class LocalProgram:
    """The module on one device.

    Attributes:
      constants: closed-over arrays by value id: large ones in their home layouts, others
        replicated.
      results_after: (position of a result, argument whose last reader the result waits for).
      traits: of the compiler that the program is scheduled for; None before scheduling.
    """

    partition: Partition
    body: Block
    constants: dict[int, LocalValue]
    results_after: tuple[tuple[int, LocalValue], ...] = ()
    traits: LoweringTraits | None = None

    @property
    def lifted(self) -> list[int]:
        """Value ids of the constants that are passed after the arguments."""
        return self.partition.module.large_constants()

    @property
    def size(self) -> int:
        """Number of instructions in the program's text, those of loops once."""
        return _size(self.body)

    def instructions(self) -> Iterator[tuple[Instruction, int]]:
        """Instructions with their runs in one step of the program."""
        yield from _instructions(self.body, 1, self.partition.rules)

    def reshards(self) -> Iterator[tuple[Reshard, int]]:
        """Reshards with their runs in one step of the program."""
        return ((item, n) for item, n in self.instructions() if isinstance(item, Reshard))

    def own_collectives(self) -> Iterator[tuple[OwnCollective, Op, int]]:
        """Collectives in the user's own `shard_map` regions, with their op and runs per step."""
        for item, times in self.instructions():
            if isinstance(item, LocalOp) and (manual := self.partition.rules[item.op.id].manual):
                for c in manual.collectives:
                    yield c, item.op, times * c.times


def _size(block: Block) -> int:
    inner = (b for item in block.steps if isinstance(item, LocalOp) for b in item.blocks)
    return len(block.steps) + sum(map(_size, inner))


def _instructions(
    block: Block, times: int, rules: Sequence[OpRule]
) -> Iterator[tuple[Instruction, int]]:
    for item in block.steps:
        yield item, times
        if isinstance(item, LocalOp) and item.blocks:
            trip_counts = rules[item.op.id].data_flow.trip_counts
            for inner, trips in zip(item.blocks, trip_counts, strict=True):
                yield from _instructions(inner, times * trips, rules)
