"""The device-local program: what one device runs, with explicit collectives.

The simulator walks it and `emit` turns it into jax, so that the prediction is the program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Union

from partir_search.ir.core import Op, Region
from partir_search.ir.manual import OwnCollective
from partir_search.ir.partition import Partition
from partir_search.ir.rule import OpRule
from partir_search.lowering.collective_matmul import Part
from partir_search.lowering.passing import Passing
from partir_search.lowering.reshard import Step
from partir_search.lowering.slots import Slot, Source


@dataclasses.dataclass(eq=False, slots=True)
class Move:
    """One step of a redistribution, done for `op` (or for the program's results: None).

    `again` marks a gather (or a ring's permute) whose copy was made before and given up: it must
    not be merged with the earlier one, or the memory that giving it up saves is not saved.
    `rests` marks a target that is the value where it rests, not a copy. `blocks` were fetched to
    be put together with the source. `turn` is the turn of a ring that it is made for, whose
    operand moves on while the turn before works; 0 of no ring. `shared` ones are the same object in
    all of a search's programs that have them. `beside`: the target's parts are not put together.
    """

    step: Step
    source: Slot
    target: Slot
    op: Op | None
    again: bool = False
    rests: bool = False
    blocks: tuple[Slot, ...] = ()
    turn: int = 0
    shared: bool = False
    beside: bool = False

    @property
    def payload_bytes(self) -> int:
        """Bytes of the larger side on the device: the size that collectives are quoted in."""
        if self.step.kind == "collective_permute":
            return self.target.nbytes
        return max(self.source.nbytes, self.target.nbytes)


@dataclasses.dataclass(eq=False, slots=True)
class Apply:
    """An op on local tiles; in a ring one of several `turns`, whose results are added up (or put
    side by side, where what is walked is a dim of the result). `part` is the turn's of a
    collective matmul (`lowering/collective_matmul.py`); `arrived` are sums so far, if they pass.
    """

    op: Op
    ins: tuple[Source, ...]
    outs: tuple[Slot, ...]
    blocks: tuple[Block, ...] = ()
    turn: int = 0
    turns: int = 1
    part: Part | Passing | None = None
    arrived: tuple[Slot, ...] = ()


Instruction = Union[Move, Apply]


@dataclasses.dataclass(eq=False, slots=True)
class Block:
    """A region on one device."""

    region: Region
    args: tuple[Slot, ...]
    steps: list[Instruction]
    results: tuple[Source, ...]


@dataclasses.dataclass(eq=False, slots=True)
class LocalProgram:
    """The module on one device.

    Attributes:
      constants: slot per closed-over array, by value id: large ones as they rest, others whole.
    """

    partition: Partition
    body: Block
    constants: dict[int, Slot]

    @property
    def lifted(self) -> list[int]:
        """Value ids of the constants that are passed after the arguments."""
        return self.partition.module.large_constants()

    @property
    def size(self) -> int:
        """Instructions in the program's text, those of loops once."""
        return _size(self.body)

    def instructions(self) -> Iterator[tuple[Instruction, int]]:
        """Moves and ops with the number of times that one step of the program runs them."""
        yield from _instructions(self.body, 1, self.partition.rules)

    def moves(self) -> Iterator[tuple[Move, int]]:
        """The moves among them."""
        return ((item, n) for item, n in self.instructions() if isinstance(item, Move))

    def own_collectives(self) -> Iterator[tuple[OwnCollective, Op, int]]:
        """Collectives in the user's own `shard_map` regions, with their op and runs per step."""
        for item, times in self.instructions():
            if isinstance(item, Apply) and (manual := self.partition.rules[item.op.id].manual):
                for c in manual.collectives:
                    yield c, item.op, times * c.times


def _size(block: Block) -> int:
    inner = (b for item in block.steps if isinstance(item, Apply) for b in item.blocks)
    return len(block.steps) + sum(map(_size, inner))


def _instructions(
    block: Block, times: int, rules: Sequence[OpRule]
) -> Iterator[tuple[Instruction, int]]:
    for item in block.steps:
        yield item, times
        if isinstance(item, Apply) and item.blocks:
            trip_counts = rules[item.op.id].data_flow.trip_counts
            for inner, trips in zip(item.blocks, trip_counts, strict=True):
                yield from _instructions(inner, times * trips, rules)
