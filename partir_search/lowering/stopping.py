"""Loops over a batch of examples that a device leaves when its own examples have finished.

Such a loop runs while any example runs: an all_reduce of a bool per iteration, if the batch is
tiled. Finished examples keep their values, and a device may stop after its own examples, unless an
iteration holds collectives: for a collective all devices must be present.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from partir_search.ir.core import Op, Region
from partir_search.ir.partition import Partition
from partir_search.lowering.local_ir import Block, Instruction, Reshard
from partir_search.lowering.local_value import LocalValue, Source
from partir_search.lowering.reshard_steps import Reduction


def stop_alone(partition: Partition, op: Op, blocks: Sequence[Block]) -> tuple[Block, ...]:
    """The blocks of a loop, with a decision per device instead of the all_reduce, if devices may
    stop alone.

    Devices may if no iteration holds another collective, and all carries are tiled over the
    examples as the predicate is: a device then reads and writes values of its own examples only.
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
    """The decision of one device, before the reduction over devices; None if the block reshards
    more than the decision.
    """
    reshards = [s for s in steps if isinstance(s, Reshard)]
    for reshard in reversed(reshards):
        step = reshard.step
        if reshard.target is not result or not isinstance(step, Reduction) or step.monoid != "or":
            return None
        result = reshard.source
    return result if isinstance(result, LocalValue) else None


def _meets(partition: Partition, block: Block) -> bool:
    """True if devices meet in a block: in a collective, or an op that all devices run together."""

    def communicates(block: Block) -> bool:
        return any(
            s.step.communicates if isinstance(s, Reshard) else any(map(communicates, s.blocks))
            for s in block.steps
        )

    def together(region: Region) -> bool:
        return any(
            rule.has_collectives or rule.manual or any(map(together, op.regions))
            for op, rule in ((op, partition.rules[op.id]) for op in region.ops)
        )

    return communicates(block) or together(block.region)
