"""Collective matmul: a product in turns, overlapped with permutes of blocks (windowed einsum).

An all_gather before a product becomes n - 1 permutes of a block, each during the product of the
preceding block; a reduce_scatter after a product becomes n - 1 permutes of a block's partial sums.
The bytes sent are equal, and the gathered operand never exists as a whole. Wang et al., "Overlap
Communication with Dependent Computation via Decomposition", ASPLOS 2023.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from partir_search.ir.rule import OpRule
from partir_search.lowering.diagonals import permute_blocks
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.reshard_steps import AllGather, Permute, ReduceScatter, ReshardStep

PARTIAL_RESULT = -1  # value of `MatmulRing.moving`: partial sums of the result move


@dataclasses.dataclass(frozen=True, slots=True)
class MatmulRing:
    """Schedule of an op's turns over the blocks of a factor without a loop.

    The block of a turn is (device's coordinate on the axis + the turn's offset) modulo `size`.
    Operand blocks arrive from the neighbour with the block in the preceding turn, on both sides.
    Partial sums of a result block go to the neighbour with the block in the next turn, and end at
    the block's owner.

    Attributes:
      axis: mesh axis of the ring.
      size: number of devices along the axis, of blocks and of turns.
      factor: factor of the op cut into blocks.
      moving: position of the operand whose blocks move, or `PARTIAL_RESULT`.
    """

    axis: int
    size: int
    factor: int
    moving: int

    @property
    def groups(self) -> list[list[int]]:
        """Offsets of the turns, in groups.

        Blocks for the next group are sent, in both directions, during the turns of a group.
        """
        near = [[k, -k] if 2 * k < self.size else [k] for k in range(1, self.size // 2 + 1)]
        groups = [[0], *near]
        return groups[::-1] if self.moving == PARTIAL_RESULT else groups

    def previous(self, offset: int) -> list[int]:
        """Offsets of the same block at neighbours in the preceding group."""
        if self.moving != PARTIAL_RESULT:
            return [offset - _sign(offset)] if offset else []
        turns = {o for group in self.groups for o in group}
        sides = (1, -1) if not offset else (_sign(offset),)
        return [offset + s for s in sides if offset + s in turns]

    def permute(self, local: LocalValue, offset: int, previous: int) -> Permute:
        """Permute of a block from devices with offset `previous` to devices with `offset`."""
        distance = previous - offset
        pairs = tuple(((i - distance) % self.size, i) for i in range(self.size))
        return permute_blocks((self.axis,), pairs, local.layout, local.partial)


def _sign(offset: int) -> int:
    return 1 if offset > 0 else -1


def gather_ring(
    rule: OpRule,
    operand: int,
    steps: Sequence[ReshardStep],
    axes: Iterable[int],
    sizes: Sequence[int],
    looped: Iterable[int],
) -> MatmulRing | None:
    """Ring that replaces the last of an operand's reshard steps; None unless an all_gather.

    Devices start at different blocks and add in different orders. A summed factor is cut into
    blocks only if the op loops over the axis: otherwise replicas of one sum would differ in
    rounding.

    Args:
      operand: position of the operand.
      steps: reshard steps of the operand.
      axes: axes on which rings are allowed.
      sizes: sizes of the mesh's axes.
      looped: axes with a loop of the op.
    """
    last = steps[-1]
    if not isinstance(last, AllGather) or len(last.axes) > 1 or last.axes[0] not in axes:
        return None
    if sizes[last.axes[0]] == 1:
        return None
    factor = rule.operands[operand][last.dim]
    if factor >= 0 and rule.reducers[factor] and last.axes[0] not in looped:
        return None
    return MatmulRing(last.axes[0], sizes[last.axes[0]], factor, operand) if factor >= 0 else None


def scatter_ring(
    rule: OpRule, steps: Sequence[ReshardStep], axes: Iterable[int], sizes: Sequence[int]
) -> MatmulRing | None:
    """Ring that replaces the first of a result's reshard steps; None unless a reduce_scatter.

    See `gather_ring` for the arguments.
    """
    first = steps[0]
    if not isinstance(first, ReduceScatter) or first.axes[0] not in axes:
        return None
    if sizes[first.axes[0]] == 1:
        return None
    factor = rule.results[0][first.dim]
    return MatmulRing(first.axes[0], sizes[first.axes[0]], factor, PARTIAL_RESULT)
