"""Collective matmul (Wang et al., ASPLOS 2023): a product over blocks that go round a mesh axis.

An all_gather before a product becomes n - 1 permutes of a block, each while the product works on
the block before; a reduce_scatter after a product becomes n - 1 permutes of a block's partial sum.
The bytes are the same, and no device ever holds the gathered operand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from partir_search.ir.rule import OpRule
from partir_search.lowering.diagonals import shuffle
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.reshard_steps import AllGather, Permute, ReduceScatter, ReshardStep

RESULT = -1  # what moves is the sum so far


@dataclasses.dataclass(frozen=True, slots=True)
class Walk:
    """Schedule of an op's turns over the blocks of a factor without a loop.

    A turn has an offset: its block is the coordinate on the axis plus the offset. Blocks of an
    operand come from the neighbour of the turn before, from both sides; partial sums of a block go
    to the neighbour of the next turn, and end on the block's owner.

    Attributes:
      axis: mesh axis of the ring.
      size: devices along the axis, and turns.
      factor: factor of the op that the blocks cut.
      moving: position of the operand whose blocks move, or `RESULT`.
    """

    axis: int
    size: int
    factor: int
    moving: int

    @property
    def groups(self) -> list[list[int]]:
        """Offsets of the turns in groups: turns of a group work while blocks for the next group are
        on their way, in both directions.
        """
        near = [[k, -k] if 2 * k < self.size else [k] for k in range(1, self.size // 2 + 1)]
        groups = [[0], *near]
        return groups[::-1] if self.moving == RESULT else groups

    def before(self, offset: int) -> list[int]:
        """Offsets of the block at neighbours, in turns before this one."""
        if self.moving != RESULT:
            return [offset - _sign(offset)] if offset else []
        turns = {o for group in self.groups for o in group}
        sides = (1, -1) if not offset else (_sign(offset),)
        return [offset + s for s in sides if offset + s in turns]

    def step(self, local: LocalValue, offset: int, before: int) -> Permute:
        """The permute that passes a block from one offset to a neighbour's offset."""
        away = before - offset  # who has it, from who works on it next
        pairs = tuple(((i - away) % self.size, i) for i in range(self.size))
        return shuffle((self.axis,), pairs, local.layout, local.pending)


def _sign(offset: int) -> int:
    return 1 if offset > 0 else -1


def gather_walk(
    rule: OpRule,
    operand: int,
    steps: Sequence[ReshardStep],
    axes: Iterable[int],
    sizes: Sequence[int],
    looped: Iterable[int],
) -> Walk | None:
    """The walk that replaces the last step of an operand's reshard, if this step is a gather.

    Args:
      looped: axes of the op's loops. Devices start at different blocks, and copies of one sum would
        differ in rounding: a contracted factor is walked only if each device makes a sum of its
        own.
    """
    last = steps[-1]
    if not isinstance(last, AllGather) or len(last.axes) > 1 or last.axes[0] not in axes:
        return None
    if sizes[last.axes[0]] == 1:
        return None
    factor = rule.operands[operand][last.dim]
    if factor >= 0 and rule.reducers[factor] and last.axes[0] not in looped:
        return None
    return Walk(last.axes[0], sizes[last.axes[0]], factor, operand) if factor >= 0 else None


def scatter_walk(
    rule: OpRule, steps: Sequence[ReshardStep], axes: Iterable[int], sizes: Sequence[int]
) -> Walk | None:
    """The walk that replaces the first step of a result's reshard, if this step is a
    reduce_scatter.
    """
    first = steps[0]
    if not isinstance(first, ReduceScatter) or first.axes[0] not in axes:
        return None
    if sizes[first.axes[0]] == 1:
        return None
    factor = rule.results[0][first.dim]
    return Walk(first.axes[0], sizes[first.axes[0]], factor, RESULT)
