"""Gradients of weights computed before the backward pass goes on.

XLA:GPU's latency-hiding scheduler defers products that nothing waits for, to run beside
collectives. Without collectives in the chain of the backward pass, as in data parallelism, most are
computed at the end of the step, and the gradients of activations that they read live until then.
The pass puts such a product before the next readers, in the chain, of the same operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from partir_search.ir.analysis.critical_path import off_critical_path
from partir_search.ir.rule import OpRule
from partir_search.lowering.local_ir import LocalOp, LocalProgram, LocalRegion, Reshard, RingTurn
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.scheduling.marks import Marks, mark_body
from partir_search.lowering.traits import LoweringTraits

MarksOf = Callable[[LocalRegion, Sequence[OpRule], Set[int], LoweringTraits], Marks]


def compute_gradients_first(program: LocalProgram, traits: LoweringTraits) -> LocalProgram:
    """Puts gradients of weights before later products with the same gradient of an activation.

    Gradients with a collective in the chain before the next gradient keep their order, to run
    beside the collective, and so do results not smaller than the operands by
    `LoweringTraits.delayed_reduction_ratio`.
    """
    return mark_gradients(program, traits, traits.computes_gradients_first, _products)


def mark_gradients(
    program: LocalProgram, traits: LoweringTraits, wanted: bool, marks_of: MarksOf
) -> LocalProgram:
    """Marks the body of a program by its gradients of weights; the program itself if not wanted.

    Args:
      marks_of: marks by the body, the rules of the ops, the ids of values on which no dot depends,
        and the traits.
    """
    if not wanted:
        return program
    rules = program.partition.rules
    late = off_critical_path(program.partition.module, rules)
    return mark_body(program, marks_of(program.body, rules, late, traits))


def small_products(
    item: LocalOp, rules: Sequence[OpRule], traits: LoweringTraits
) -> list[LocalValue]:
    """Results of a contraction smaller than its operands by `delayed_reduction_ratio`."""
    if not rules[item.op.id].contracts or isinstance(item, RingTurn):
        return []
    read = max((x.nbytes for x in item.ins if isinstance(x, LocalValue)), default=0)
    return [x for x in item.outs if read >= traits.delayed_reduction_ratio * x.nbytes]


def _products(
    body: LocalRegion, rules: Sequence[OpRule], late: Set[int], traits: LoweringTraits
) -> Marks:
    made = {
        out.id
        for item in body.steps
        if item.op is not None and item.op.backward
        for out in item.outs
    }
    marks: dict[int, dict[str, tuple[LocalValue, ...]]] = {}
    chained: set[int] = set()  # ids of operands of later products in the chain
    sent = False  # a collective of the chain lies before the next gradient
    for at in range(len(body.steps) - 1, -1, -1):
        item = body.steps[at]
        if item.op is None or not item.op.backward:
            continue
        if isinstance(item, Reshard):
            sent |= item.step.communicates and item.source.value.id not in late
            continue
        read = [x for x in item.ins if isinstance(x, LocalValue)]
        if any(out.value.id in late for out in small_products(item, rules, traits)):
            shared = tuple(x for x in read if x.id in chained and x.id in made)
            if shared and not sent:
                marks[at] = {"before": shared}
            sent = False
        elif rules[item.op.id].contracts and any(x.value.id not in late for x in item.outs):
            chained.update(x.id for x in read)
    return marks
