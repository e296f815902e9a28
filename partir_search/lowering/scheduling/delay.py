"""Rings and gathers that wait for products that nothing else waits for.

XLA puts off the gradients of weights, to have work while it communicates, and what they read stays
where it is.

*Rings*: each waits for the one before the last. Under P_{4x4} on v5e four layers took 5.4 GB, in
this order 5.0. By XLA's cycles one layer takes 43.6 ms without, 43.2 in this order, and 45.2 if
each ring waits for the last one.

*Gathers made again* in the backward pass wait likewise for products that read much and make little,
as the gradients of a graph network's weights, whose operands are arrays of edges. With all
parameters sharded on v5e it took 1.37 GB and 17.96 ms, in this order 0.98 and 17.64. Other
gradients are left to XLA: they take no longer than a gather (a LLaMA of 4,096 positions a device:
16.74 ms without, 16.81 in this order) or, tied, are copied (experts': 20.69 and 22.44 ms).
"""

from __future__ import annotations

from collections.abc import Sequence

from partir_search.ir.rule import OpRule
from partir_search.lowering.local_ir import Block, Reshard, RingTurn, SkewedTurn
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.reshard_steps import AllGather, Reduction
from partir_search.lowering.traits import NEUTRAL, LoweringTraits


def ring_queue(block: Block, traits: LoweringTraits = NEUTRAL) -> dict[int, tuple[LocalValue, ...]]:
    """By position of a ring's first step, the results of the ring that it waits for."""
    results: dict[int, tuple[LocalValue, ...]] = {}  # by op, in order
    for item in block.steps:
        if isinstance(item, SkewedTurn):
            results[item.op.id] = item.outs
    rings = list(results)
    first: dict[int, int] = {}
    for i, item in enumerate(block.steps):
        if item.op is not None and item.op.id in results:
            first.setdefault(item.op.id, i)
    late = rings[traits.delay_lag_collectives :]
    return {first[op]: results[waits] for op, waits in zip(late, rings, strict=False)}


def gather_queue(
    block: Block, rules: Sequence[OpRule], traits: LoweringTraits = NEUTRAL
) -> dict[int, tuple[LocalValue, ...]]:
    """By position of a gather made again, the gradients that it waits for: those that are reduced
    among devices, were made between the two gathers before the last one, and read
    much for the little that they are (`LoweringTraits.delayed_reduction_ratio`).
    """
    steps, lag = block.steps, traits.delay_lag_collectives
    reduced = {
        item.source.id
        for item in steps
        if isinstance(item, Reshard) and isinstance(item.step, Reduction)
    }
    queue: dict[int, tuple[LocalValue, ...]] = {}
    waiting: list[list[LocalValue]] = [[]]  # by gathers made again before it
    for i, item in enumerate(steps):
        if isinstance(item, Reshard):
            if item.regather and isinstance(item.step, AllGather):
                if len(waiting) > lag and waiting[-1 - lag]:
                    queue[i] = tuple(waiting[-1 - lag])
                waiting.append([])
        elif rules[item.op.id].contracts and not isinstance(item, RingTurn):
            read = max((x.nbytes for x in item.ins if isinstance(x, LocalValue)), default=0)
            small = (out for out in item.outs if out.id in reduced)
            waiting[-1] += [
                out for out in small if read >= traits.delayed_reduction_ratio * out.nbytes
            ]
    return queue
