"""Rows of stacks read by loops: slices of values with one row per iteration.

A row lies in memory on the chip only with the whole stack (`XlaTraits.vmem_resident_fraction`).
Evidence: products with softmaxes bf16[4,16,512,512], compiled for v5e, take 19 to 23 us with the
softmax on the chip, 70 and 82 with a row of a stack.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from partir_search.ir.core import Module
from partir_search.ir.rule import OpRule
from partir_search.simulator.arrays import Floats


def stack_rows(module: Module, rules: Sequence[OpRule]) -> Floats:
    """[values] number of rows of a row's stack; 1 for values without a stack.

    Args:
      rules: per op id.
    """
    found = np.ones(len(module.values))
    for op in module.ops:
        for operand, region, argument, stacked in (
            rules[op.id].data_flow.inputs if op.regions else ()
        ):
            if stacked:
                shape = op.operands[operand].type.shape
                found[op.regions[region].args[argument].id] = math.prod(shape[:stacked])
    return found
