"""Products that reductions alone read, each in the kernel of the product.

The product is no array, unless a collective adds up its partial sums
(`XlaTraits.reduces_products_at_once`). A sum of all elements and a further reduction are two
kernels, which read a stored product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from partir_search.ir.role import Role
from partir_search.ir.rule import OpRule
from partir_search.simulator.memory.materialize import Materialized
from partir_search.simulator.op_kinds import exceeds_accumulator, is_reduction
from partir_search.simulator.target.traits import XlaTraits


def reduced_products(
    stored: Materialized,
    rules: Sequence[OpRule],
    traits: XlaTraits,
    readers: Mapping[int, Sequence[int]],
) -> Iterator[int]:
    """Ids of a region's dots' results that are no arrays.

    Args:
      rules: per op id.
      readers: by id of a value that is not returned, the positions of the kernels that read it.
    """
    ops, made = stored.region.ops, stored.made

    def reduces(at: int, dot: int) -> bool:
        op, rule = ops[at], rules[ops[at].id]
        ready = all(made.get(v, -1) <= made[dot] for v in stored.reads[at])
        alike = math.prod(rule.sizes) == math.prod(ops[made[dot]].results[0].type.shape)
        return ready and alike and is_reduction(rule) and not exceeds_accumulator(op, rule, traits)

    for dot, since in made.items():
        if rules[ops[since].id].role is not Role.DOT or not (found := readers.get(dot)):
            continue
        whole = any(not ops[at].results[0].type.shape for at in found)
        if all(reduces(at, dot) for at in found) and (len(found) == 1 or not whole):
            yield dot
