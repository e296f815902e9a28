"""Products of the backward pass that wait for the chain of gradients.

An operand shared by products of many layers, as the gradient of a sum of skipped outputs, is ready
long before the gradients with which the products' results are added. In programs with asynchronous
collectives XLA's latency-hiding scheduler computes all products at once, and the results live until
their layer's turn (docs/evidence/traits.md: `delays_early_products`). The pass makes
a product wait for the collective before the latest one in the chain: the product can still run
beside the latest.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from partir_search.ir.rule import OpRule
from partir_search.lowering.local_ir import LocalOp, LocalProgram, LocalRegion, Reshard, RingTurn
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.scheduling.gradients import mark_gradients
from partir_search.lowering.scheduling.marks import Marks
from partir_search.lowering.traits import LoweringTraits


def delay_early_products(program: LocalProgram, traits: LoweringTraits) -> LocalProgram:
    """Makes products of the backward pass wait that could precede several collectives of the chain.

    The number is `LoweringTraits.delay_lag_collectives`.
    """
    return mark_gradients(program, traits, traits.delays_early_products, _products)


def _products(
    body: LocalRegion, rules: Sequence[OpRule], late: Set[int], traits: LoweringTraits
) -> Marks:
    marks: dict[int, dict[str, tuple[LocalValue, ...]]] = {}
    gradients: set[int] = set()  # ids of values that the backward pass makes
    depth: dict[int, int] = {}  # by id of a local value: collectives of the chain behind the value
    chain: list[LocalValue] = []  # results of the chain's collectives, the first of each depth
    # By id of a local value, the product behind reads of one operand: position, length of `chain`.
    product: dict[int, tuple[int, int]] = {}
    for at, item in enumerate(body.steps):
        read = (item.source, *item.received) if isinstance(item, Reshard) else item.ins
        known = [x for x in read if isinstance(x, LocalValue)]
        deep = max((depth.get(x.id, 0) for x in known), default=0)
        origin = product.get(known[0].id) if len(known) == 1 else None
        if isinstance(item, Reshard):
            value = item.source.value.id
            if item.step.communicates and value in gradients and value not in late:
                if deep == len(chain):
                    chain.append(item.target)
                deep += 1
        elif item.op.backward:
            gradients.update(x.value.id for x in item.outs)
            if _makes_gradient(item, rules, late):
                origin = at, len(chain)
            for x in known if len(known) > 1 and rules[item.op.id].elementwise else ():
                if x.id in product:
                    made, length = product[x.id]
                    latest = min(deep, length) - traits.delay_lag_collectives
                    if latest >= depth.get(x.id, 0):
                        marks[made] = {"operands_after": (chain[latest],)}
        depth.update((x.id, deep) for x in item.outs)
        if origin is not None:
            product.update((x.id, origin) for x in item.outs)
    return marks


def _makes_gradient(item: LocalOp, rules: Sequence[OpRule], late: Set[int]) -> bool:
    """True for a contraction with a result on which later contractions depend."""
    contracts = rules[item.op.id].contracts and not isinstance(item, RingTurn)
    return contracts and any(x.value.id not in late for x in item.outs)
