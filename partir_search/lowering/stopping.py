"""Loops over a batch of examples that each device leaves as soon as its own examples have finished.

Such a loop goes on while any example does, which is an all_reduce of a bool in every iteration if
the batch is tiled. Examples that have finished keep their values, so a device may stop as soon as
its own have: unless an iteration holds collectives, for which all devices must be there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from partir_search.ir.core import Op, Region
from partir_search.ir.partition import Partition
from partir_search.lowering.local_ir import Block, Instruction, Reshard
from partir_search.lowering.local_value import LocalValue, Source
from partir_search.lowering.reshard_steps import Reduction


def stop_alone(partition: Partition, op: Op, blocks: Sequence[Block]) -> tuple[Block, ...]:
    """The blocks of a loop, its decision without the all_reduce where each device may decide alone.

    That is where no iteration holds another collective, and all carries are tiled over the examples
    as the predicate is: a device then reads and writes nothing but what belongs to its examples.
    """
    examples = partition.rules[op.id].data_flow.examples
    if examples is None:
        return tuple(blocks)
    decision = blocks[examples.decides]
    own = _undecided(decision.steps, decision.results[0])
    if own is None or own is decision.results[0]:
        return tuple(blocks)
    body = op.regions[examples.body]
    layouts = [partition.layout(v) for v in body.args[examples.first :]]
    over = layouts[-1]
    alike = all(layout[: len(over)] == over for layout in layouts)
    tiled = {axis for axes in over for axis in axes}
    summed = {axis for axis, _ in own.pending}
    if not alike or not summed <= tiled or _meets(partition, blocks[examples.body]):
        return tuple(blocks)
    steps: list[Instruction] = [s for s in decision.steps if not isinstance(s, Reshard)]
    alone = Block(decision.region, decision.args, steps, (own,))
    return tuple(alone if b is decision else b for b in blocks)


def _undecided(steps: Iterable[Instruction], result: Source) -> LocalValue | None:
    """The decision as a device makes it, before it is combined with those of the others; None if
    more is moved than the decision.
    """
    moves = [s for s in steps if isinstance(s, Reshard)]
    for move in reversed(moves):
        step = move.step
        if move.target is not result or not isinstance(step, Reduction) or step.monoid != "or":
            return None
        result = move.source
    return result if isinstance(result, LocalValue) else None


def _meets(partition: Partition, block: Block) -> bool:
    """Tells whether devices meet in a block: in a collective, or in an op that all run together."""

    def moves(block: Block) -> bool:
        return any(
            s.step.communicates if isinstance(s, Reshard) else any(map(moves, s.blocks))
            for s in block.steps
        )

    def together(region: Region) -> bool:
        return any(
            rule.together or rule.manual or any(map(together, op.regions))
            for op, rule in ((op, partition.rules[op.id]) for op in region.ops)
        )

    return moves(block) or together(block.region)
