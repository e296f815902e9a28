"""Lower bounds of the communication of a program's matrix products, under any plan.

Memory-independent bounds of one product on p devices: Al Daas, Ballard, Grigori, Kumar and Rouse,
SPAA 2022 (arXiv 2205.13407). A bound assumes one copy of each operand, in any distribution. The sum
over a program's products is a yardstick for plans, not a bound of the program, as several products
may share one gathered copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from partir_search.ir.core import Module
from partir_search.ir.rule import OpRule


def product_words(m: float, n: float, k: float, devices: float) -> float:
    """Elements that some device must send or receive for [m, n] x [n, k] on `devices`."""
    k, n, m = sorted((m, n, k))
    p = devices
    if p <= m / n:
        accessed = (m * n + m * k) / p + n * k
    elif p <= m * n / k**2:
        accessed = 2 * math.sqrt(m * n * k**2 / p) + m * n / p
    else:
        accessed = 3 * (m * n * k / p) ** (2 / 3)
    return max(0.0, accessed - (m * n + m * k + n * k) / p)


def products_bytes(module: Module, rules: Sequence[OpRule], devices: int) -> float:
    """Sum of the lower bounds of all matrix products of a module, in bytes.

    A convolution counts as the equivalent matrix product. An op in a loop counts once. The devices
    are divided among the products of a batch first.

    Args:
      rules: per op id.
    """
    total = 0.0
    for op in module.ops:
        rule = rules[op.id]
        inputs = [(i, v) for i, v in op.inputs() if v.type.shape]
        if not rule.contracts or len(inputs) != 2 or len(op.results) != 1 or 0 in rule.sizes:
            continue
        (a, left), (b, right) = inputs
        in_operands = [
            tuple(rule.dim_of(dims, f) >= 0 for dims in (rule.operands[a], rule.operands[b]))
            for f in range(len(rule.sizes))
        ]
        batch = m = n = k = 1
        for f, size in enumerate(rule.sizes):
            in_result = rule.dim_of(rule.results[0], f) >= 0
            if in_operands[f] == (True, True):
                batch, n = (batch * size, n) if in_result else (batch, n * size)
            elif in_operands[f][0]:
                m *= size
            else:
                k *= size
        groups = min(batch, devices)
        words = product_words(m, n, k, devices / groups) * batch / groups
        total += words * min(left.type.itemsize, right.type.itemsize) * op.count
    return total
