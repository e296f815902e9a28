"""Rings, regathers and reductions delayed until weight gradients are computed.

XLA defers gradients of weights to overlap compute with communication; the operands of deferred
gradients stay alive (docs/evidence/traits.md: `delay_lag_collectives`, `delays_regathers`).

*Rings* wait for the ring before the preceding one. Four layers under P_{4x4} on v5e take 5.4 GB in
XLA's order, 5.0 GB with the delay.

*Regathers* of the backward pass wait for contractions with large operands and small results, as
the gradients of a graph network's weights, whose operands are arrays of edges. Gradients with
smaller operands keep XLA's order: a wait for short gradients saves nothing, and a dependency on
experts' gradients adds a copy.

*Reductions* of the backward pass, as of tensor parallelism, wait for such gradients as well. In
programs with asynchronous collectives XLA's latency-hiding scheduler otherwise computes gradients
that no collective sends inside of the update's kernels, at the end of the step.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence, Set

from partir_search.ir.rule import OpRule
from partir_search.lowering.local_ir import (
    Instruction,
    LocalOp,
    LocalProgram,
    LocalRegion,
    Reshard,
    RingTurn,
    SkewedTurn,
)
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.reshard_steps import AllGather, Reduction
from partir_search.lowering.scheduling.gradients import mark_gradients, small_products
from partir_search.lowering.scheduling.marks import Marks, mark_regions
from partir_search.lowering.traits import LoweringTraits


def delay_rings(program: LocalProgram, traits: LoweringTraits) -> LocalProgram:
    """Makes each ring on two axes wait for the results of the ring `delay_lag_collectives` earlier.

    The first instruction of the ring waits. Collective matmul and attention keep XLA's order.
    """

    def find(body: LocalRegion, outer: Set[int]) -> Marks:
        results: dict[int, tuple[LocalValue, ...]] = {}  # by op, in order
        for item in body.steps:
            if isinstance(item, SkewedTurn):
                results[item.op.id] = item.outs
        if not results:
            return {}
        first: dict[int, int] = {}
        for at, item in enumerate(body.steps):
            if item.op is not None and item.op.id in results:
                first.setdefault(item.op.id, at)
        rings = list(results)
        late = rings[traits.delay_lag_collectives :]
        return {
            first[op]: {"operands_after": results[earlier]}
            for op, earlier in zip(late, rings, strict=False)
        }

    return mark_regions(program, find)


def order_turns(program: LocalProgram, traits: LoweringTraits) -> LocalProgram:
    """Puts each turn of a ring before the readers of the blocks sent during the turn.

    One product then lies between the start and the end of a permute, with at most two copies of an
    operand alive.
    """

    def find(body: LocalRegion, outer: Set[int]) -> Marks:
        marks: dict[int, dict[str, tuple[LocalValue, ...]]] = {}
        following: LocalOp | None = None
        for at in range(len(body.steps) - 1, -1, -1):
            item = body.steps[at]
            if isinstance(item, RingTurn) and not item.last:
                assert following is not None
                moved = (x for x in following.ins if isinstance(x, LocalValue))
                marks[at] = {"before": tuple(x for x in moved if x not in item.ins)}
            if isinstance(item, LocalOp):
                following = item
        return marks

    return mark_regions(program, find)


def delay_gathers(program: LocalProgram, traits: LoweringTraits) -> LocalProgram:
    """Makes regathers wait for gradients computed `delay_lag_collectives` regathers earlier.

    A gradient is a contraction's result on which no contraction depends, smaller than the operands
    by `LoweringTraits.delayed_reduction_ratio`.
    """
    return mark_gradients(program, traits, traits.delays_regathers, _gathers)


def _gathers(
    body: LocalRegion, rules: Sequence[OpRule], late: Set[int], traits: LoweringTraits
) -> Marks:
    marks: dict[int, dict[str, tuple[LocalValue, ...]]] = {}
    waiting = collections.deque([_Gradients()], maxlen=traits.delay_lag_collectives + 1)
    for at, item in enumerate(body.steps):
        if isinstance(item, Reshard) and item.regather and isinstance(item.step, AllGather):
            if len(waiting) == waiting.maxlen and waiting[0]:
                marks[at] = {"after": tuple(waiting[0].values())}
            waiting.append(_Gradients())
            continue
        for earlier in waiting:
            earlier.follow(item)
        waiting[-1].add(item, rules, late, traits)
    return marks


def delay_reductions(program: LocalProgram, traits: LoweringTraits) -> LocalProgram:
    """Makes reductions of the backward pass wait for gradients of weights computed before.

    A gradient is a contraction's result on which no contraction depends, smaller than the operands
    by `LoweringTraits.delayed_reduction_ratio`. The reduction of a gradient waits for none.
    """
    return mark_gradients(program, traits, traits.delays_reductions, _reductions)


def _reductions(
    body: LocalRegion, rules: Sequence[OpRule], late: Set[int], traits: LoweringTraits
) -> Marks:
    marks: dict[int, dict[str, tuple[LocalValue, ...]]] = {}
    waiting = _Gradients()  # since the last marked reduction
    for at, item in enumerate(body.steps):
        if item.op is None or not item.op.backward:
            continue
        if (
            isinstance(item, Reshard)
            and isinstance(item.step, Reduction)
            and item.source.value.id not in late
            and waiting
        ):
            marks[at] = {"after": tuple(waiting.values())}
            waiting = _Gradients()
        waiting.follow(item)
        waiting.add(item, rules, late, traits)
    return marks


class _Gradients(dict[int, LocalValue]):
    """Gradients by id of the local value to be read next: a view, a cast, or the reduced value.

    XLA removes a value without later readers from a barrier.
    """

    def add(
        self, item: Instruction, rules: Sequence[OpRule], late: Set[int], traits: LoweringTraits
    ) -> None:
        """Adds the gradients that an instruction computes."""
        if isinstance(item, LocalOp):
            found = small_products(item, rules, traits)
            self.update((x.id, x) for x in found if x.value.id in late)

    def follow(self, item: Instruction) -> None:
        """Replaces the gradient that an instruction reads by the instruction's result."""
        read = [item.source] if isinstance(item, Reshard) else item.ins
        known = [x for x in read if isinstance(x, LocalValue)]
        if len(known) == len(item.outs) == 1 and known[0].id in self:
            del self[known[0].id]
            self[item.outs[0].id] = item.outs[0]
