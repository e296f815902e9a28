"""Rates of matrix products whose operands' rows do not start at aligned addresses.

Rows of an array with a last dim of n elements of b bytes start n b bytes apart. Products with an
operand or result of another stride than a multiple of `XlaTraits.product_alignment_bytes` run at
`XlaTraits.misaligned_product_rate` of the rate of aligned ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partir_search.ir.core import Module, Value
from partir_search.ir.rule import OpRule
from partir_search.simulator.arrays import Floats, Ints
from partir_search.simulator.target.traits import XlaTraits
from partir_search.simulator.time.kernels import Kernels
from partir_search.simulator.time.local_rates import LocalRates, extents


def alignment(
    module: Module, rules: Sequence[OpRule], kernels: Kernels, traits: XlaTraits
) -> LocalRates | None:
    """Shares of the rates of a module's products of two operands; None where all are 1.

    Args:
      rules: per op id.
    """
    rate = traits.misaligned_product_rate
    if rate == 1.0:
        return None
    found, rows = list[int](), list[list[tuple[int, int]]]()
    for k, op_id in enumerate(kernels.op.tolist()):
        rule, op = rules[op_id], module.ops[op_id]
        if not rule.contracts or len(rule.operands) != 2 or rule.blockwise or rule.reads:
            continue
        pairs = zip((*rule.operands, *rule.results), (*op.operands, *op.results), strict=True)
        arrays = [(dims[-1], v.type) for dims, v in pairs if dims and isinstance(v, Value)]
        found.append(k)
        rows.append([(f, traits.product_alignment_bytes // t.itemsize) for f, t in arrays])
    if not rows:
        return None
    # [products, arrays, 2]: factor of the last dim or -1, and elements of an aligned stride
    figures = np.full((len(rows), max(map(len, rows)), 2), (-1, 1), dtype=np.int64)
    for i, arrays_of in enumerate(rows):
        for j, (factor, elements) in enumerate(arrays_of):
            figures[i, j] = factor, max(elements, 1)

    def share(local: Ints, figures: Ints) -> Floats:
        last, elements = figures[..., 0], figures[..., 1]
        strides = extents(local, np.maximum(last, 0))
        odd = ((last >= 0) & (strides % elements != 0)).any(axis=-1)
        return np.where(odd, rate, 1.0)

    return LocalRates.of(module, rules, kernels, found, figures, share)
