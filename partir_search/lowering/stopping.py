"""Batched loops in which each device stops when all examples on the device have finished.

A batched loop runs until all examples have finished: with a tiled batch, an all_reduce of a bool
in every iteration. Finished examples keep their values. A device may therefore stop alone, unless
an iteration contains collectives, in which all devices must join.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from partir_search.ir.core import Op, Region
from partir_search.ir.partition import Partition
from partir_search.lowering.local_ir import Instruction, LocalRegion, Reshard
from partir_search.lowering.local_value import LocalValue, Source
from partir_search.lowering.reshard_steps import Reduction


def stop_per_device(
    partition: Partition, op: Op, regions: Sequence[LocalRegion]
) -> tuple[LocalRegion, ...]:
    """Regions of a loop, with the predicate's all_reduce removed if devices may stop alone.

    Devices may stop alone if an iteration has no further collective, and all carries are tiled over
    the examples like the predicate: each device then reads and writes only values of own examples.
    """
    examples = partition.rules[op.id].data_flow.examples
    if examples is None:
        return tuple(regions)
    decision = regions[examples.decides]
    own = _local_decision(decision.steps, decision.results[0])
    if own is None or own is decision.results[0]:
        return tuple(regions)
    body = op.regions[examples.body]
    layouts = [partition.layout(v) for v in body.args[examples.first :]]
    over = layouts[-1]
    alike = all(layout[: len(over)] == over for layout in layouts)
    tiled = {axis for axes in over for axis in axes}
    summed = {axis for axis, _ in own.partial}
    if not alike or not summed <= tiled or _synchronises(partition, regions[examples.body]):
        return tuple(regions)
    steps: list[Instruction] = [s for s in decision.steps if not isinstance(s, Reshard)]
    alone = LocalRegion(decision.region, decision.args, steps, (own,))
    return tuple(alone if r is decision else r for r in regions)


def _local_decision(steps: Iterable[Instruction], result: Source) -> LocalValue | None:
    """Predicate of one device, before the all_reduces; None if a step reshards anything more."""
    reshards = [s for s in steps if isinstance(s, Reshard)]
    for reshard in reversed(reshards):
        step = reshard.step
        if reshard.target is not result or not isinstance(step, Reduction) or step.monoid != "or":
            return None
        result = reshard.source
    return result if isinstance(result, LocalValue) else None


def _synchronises(partition: Partition, body: LocalRegion) -> bool:
    """True if a region contains a collective or an op that all devices must run together."""

    def communicates(body: LocalRegion) -> bool:
        return any(
            s.step.communicates if isinstance(s, Reshard) else any(map(communicates, s.regions))
            for s in body.steps
        )

    def together(region: Region) -> bool:
        return any(
            rule.has_collectives or rule.manual or any(map(together, op.regions))
            for op, rule in ((op, partition.rules[op.id]) for op in region.ops)
        )

    return communicates(body) or together(body.region)
