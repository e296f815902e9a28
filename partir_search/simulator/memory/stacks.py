"""Rows of stacks read by loops: slices of values with one row per iteration.

A row lies in memory on the chip only with the whole stack (`XlaTraits.vmem_resident_fraction`).
Evidence: products with softmaxes bf16[4,16,512,512], compiled for v5e, take 19 to 23 us with the
softmax on the chip, 70 and 82 with a row of a stack.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partir_search.ir.core import Module, Value
from partir_search.ir.rule import OpRule
from partir_search.simulator.arrays import Floats


def stack_rows(module: Module, rules: Sequence[OpRule]) -> Floats:
    """[values] bytes of a loop's stacks over those of a row; 1 for values without a stack.

    Args:
      rules: per op id.
    """
    found = np.ones(len(module.values))
    for op in module.ops:
        edges = rules[op.id].data_flow
        rows, total = list[Value](), 0
        for read in edges.inputs if op.regions else ():
            if read.stacked_dims:
                rows.append(op.regions[read.region].args[read.argument])
                total += op.operands[read.operand].type.nbytes
        for made in edges.outputs if op.regions else ():
            row = op.regions[made.region].results[made.region_result]
            if made.stacked_dims and isinstance(row, Value):
                rows.append(row)
                total += op.results[made.op_result].type.nbytes
        for row in rows:
            found[row.id] = total / max(row.type.nbytes, 1)
    return found
