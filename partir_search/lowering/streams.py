"""Collective matmul (Wang et al., ASPLOS 2023): a product that walks what would be gathered or
scattered along an axis, block by block, while the blocks pass around the axis.

An all_gather before a product becomes n - 1 permutes of a block, each while the product works on
the block before; a reduce_scatter after it becomes n - 1 permutes of the sum of a block so far.
The bytes are the same. What is gathered is never there as a whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from partir_search.ir.ring import Edge
from partir_search.ir.rule import OpRule
from partir_search.lowering.program import Slot
from partir_search.lowering.reshard import Step
from partir_search.lowering.skew import Shuffle

RESULT = -1  # what moves is the sum so far


@dataclasses.dataclass(frozen=True, slots=True)
class Walk:
    """Which block of a factor, which the op does not loop over, a turn works on.

    Attributes:
      axis: that the blocks pass around.
      size: devices along it, and turns.
      factor: of the op.
      moving: position of the operand whose blocks move, or `RESULT`.
    """

    axis: int
    size: int
    factor: int
    moving: int

    @property
    def first(self) -> int:
        """What stands beside the coordinate in the index of the first turn: an operand's own
        block is at hand, a result's is done last.
        """
        return -1 if self.moving == RESULT else 0

    @property
    def sign(self) -> int:
        return -1 if self.moving == RESULT else 1

    def block(self, coordinate: int, turn: int) -> int:
        return (coordinate + self.first + self.sign * turn) % self.size

    @property
    def pairs(self) -> tuple[Edge, ...]:
        """Who sends its block to whom: to the one who works on it in the next turn."""
        holder = {self.block(i, 0): i for i in range(self.size)}
        return tuple((holder[self.block(i, 1)], i) for i in range(self.size))

    def step(self, slot: Slot) -> Step:
        """Passes a block on."""
        shuffle = Shuffle(self.pairs)
        return Step(
            "collective_permute", (self.axis,), 0, -1, "", slot.layout, slot.pending, shuffle
        )


def gather_walk(
    rule: OpRule, operand: int, steps: Sequence[Step], axes: Iterable[int], sizes: Sequence[int]
) -> Walk | None:
    """The walk that stands for the last of the steps that bring an operand, if it is a gather."""
    last = steps[-1]
    if last.kind != "all_gather" or len(last.axes) > 1 or last.axes[0] not in axes:
        return None
    factor = rule.operands[operand][last.dim]
    return Walk(last.axes[0], sizes[last.axes[0]], factor, operand) if factor >= 0 else None


def scatter_walk(
    rule: OpRule, steps: Sequence[Step], axes: Iterable[int], sizes: Sequence[int]
) -> Walk | None:
    """The walk that stands for the first of the steps that settle a result, if it scatters."""
    first = steps[0]
    if first.kind != "reduce_scatter" or first.axes[0] not in axes:
        return None
    factor = rule.results[0][first.dim]
    return Walk(first.axes[0], sizes[first.axes[0]], factor, RESULT)
