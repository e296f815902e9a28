"""Work of vector units, in bytes added to a kernel's traffic.

XLA:TPU's own cycles for kernels of one class lie on a line. An elementwise kernel takes as long as
its bytes take if all are wide. If it makes narrow elements, or reduces what it walks, it takes as
long as one more wide element for each point, however many operands there are and whatever is
computed. What follows a matrix product in its kernel counts the same, unless the product is stored
wide, and runs beside the product. So do its bytes, but for a product of many small matrices. A
product with vectors (a token's attention to a cache) is no work for matrix units: it multiplies and
reduces all its points. Found by compiling kernels of 1 to 7 operands, products over 8 to 2,048,
attention with heads of 8 to 1,024, and decoding, for v5e and v5p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from partir_search.ir.core import Module
from partir_search.ir.rule import NONE, OpRule
from partir_search.simulator.memory.buffers import Floats, Kernels
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.time.fusion import reduces


class Passes:
    """Of each of K kernels, by a module's ops.

    Attributes:
      nbytes: [K] bytes that its vector work counts as, unpartitioned; only the largest of those
        fused into one kernel has any.
      of_result: [K] the value that is tiled as that work is, or NONE: tiled as the op is.
      batched: [K] whether it is a product of many matrices.
    """

    def __init__(
        self,
        module: Module,
        rules: Sequence[OpRule],
        kernels: Kernels,
        width_of: Floats,
        machine: Machine,
    ) -> None:
        n = len(kernels.op)
        self.nbytes, self.of_result = np.zeros(n), np.full(n, NONE)
        self.batched = np.zeros(n, dtype=np.bool_)
        if not machine.vector_bytes:
            return
        largest: dict[int, int] = {}
        wide = set[int]()  # products that are stored so
        ends, touched = kernels.offsets.tolist(), kernels.touched
        for at, op_id in enumerate(kernels.op.tolist()):
            op, rule, leader = module.ops[op_id], rules[op_id], int(kernels.leader[at])
            by_vectors = _by_vectors(rule)
            if rule.contracts:
                self.batched[at] = _batched(rule)
                self.of_result[at] = NONE if by_vectors else op.results[0].id
            stored = touched[ends[at] : ends[at + 1]].tolist()
            widths = [r.type.itemsize * width_of[r.id] for r in op.results if r.id in stored]
            narrow = any(w < machine.vector_bytes for w in widths)
            if rule.contracts and widths and not narrow:
                wide.add(at)
            walks = reduces(rule) or by_vectors
            if not (narrow or walks) or (leader in wide and leader != at):
                continue
            points = math.prod(rule.sizes if walks else op.results[0].type.shape)
            twice = reduces(rule) and len(set(stored)) < len(stored)  # stored where it was read
            size = float(machine.vector_bytes * points) * (2 if twice else 1)
            before = largest.setdefault(leader, at)
            if before == at or size > self.nbytes[before]:
                self.nbytes[before] = 0.0
                self.nbytes[at], largest[leader] = size, at


def _by_vectors(rule: OpRule) -> bool:
    """True for a product of which one operand has no rows of its own."""
    if not rule.walks or rule.blockwise or len(rule.operands) != 2:
        return False
    one, other = ({f for f in dims if f >= 0 and rule.sizes[f] > 1} for dims in rule.operands)
    return one <= other or other <= one


def _batched(rule: OpRule) -> bool:
    """True if some factor is a dim of all operands and of the result."""
    held = [set(dims) for dims in (*rule.operands, *rule.results)]
    return any(f >= 0 and rule.sizes[f] > 1 for f in set.intersection(*held))
