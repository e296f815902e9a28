"""Work of vector units, in bytes added to a kernel's traffic.

XLA:TPU's own cycles for kernels of one class lie on a line. An elementwise kernel takes as long as
its bytes take if all are wide. A kernel that makes narrow elements, or reduces, takes as long as
one more wide element for each point, however many operands there are and whatever is computed. The
epilogue of a dot counts the same, unless the dot is stored wide, and runs beside the dot. So do its
bytes, but for a dot of many small matrices. A dot with vectors (a token's attention to a cache) is
no work for matrix units: all its points are multiplied and reduced. Found by compiling kernels of 1
to 7 operands, dots over 8 to 2,048 elements, attention with heads of 8 to 1,024, and decoding, for
v5e and v5p.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from partir_search.ir.core import Module
from partir_search.ir.rule import NONE, OpRule
from partir_search.simulator.arrays import Bools, Floats, Ints
from partir_search.simulator.op_kinds import is_reduction
from partir_search.simulator.printing import table
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.time.kernels import Kernels


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class VectorWork:
    """Work of vector units in each of K kernels.

    Attributes:
      nbytes: [K] bytes that the work counts as, unpartitioned; of kernels fused into one, the
        largest alone has any.
      of_result: [K] id of the value that is tiled as the work is, or NONE: tiled as the op is.
      batched: [K] whether the kernel is a dot of many matrices.
    """

    nbytes: Floats
    of_result: Ints
    batched: Bools

    def __str__(self) -> str:
        columns = (x.tolist() for x in (self.nbytes, self.batched))
        rows = [(k, *row) for k, row in enumerate(zip(*columns, strict=True)) if any(row)]
        return table("VectorWork", ("kernel", "bytes", "batched dot"), rows)


def vector_work(
    module: Module, rules: Sequence[OpRule], kernels: Kernels, width: Floats, machine: Machine
) -> VectorWork:
    """Work of vector units in a module's kernels.

    Args:
      rules: per op id.
      width: [values] stored bytes as a multiple of the type's.
    """
    n = len(kernels.op)
    nbytes, of_result = np.zeros(n), np.full(n, NONE)
    batched = np.zeros(n, dtype=np.bool_)
    largest: dict[int, int] = {}
    wide = set[int]()  # dots that are stored wide
    for at, op_id in enumerate(kernels.op.tolist() if machine.vector_bytes else ()):
        op, rule, leader = module.ops[op_id], rules[op_id], int(kernels.leader[at])
        by_vectors = _by_vectors(rule)
        if rule.contracts:
            batched[at] = _batched(rule)
            of_result[at] = NONE if by_vectors else op.results[0].id
        stored = kernels.values(at)
        widths = [r.type.itemsize * width[r.id] for r in op.results if r.id in stored]
        narrow = any(w < machine.vector_bytes for w in widths)
        if rule.contracts and widths and not narrow:
            wide.add(at)
        walks = is_reduction(rule) or by_vectors
        if not (narrow or walks) or (leader in wide and leader != at):
            continue
        points = math.prod(rule.sizes if walks else op.results[0].type.shape)
        twice = is_reduction(rule) and len(set(stored)) < len(stored)  # stored where it was read
        size = float(machine.vector_bytes * points) * (2 if twice else 1)
        before = largest.setdefault(leader, at)
        if before == at or size > nbytes[before]:
            nbytes[before] = 0.0
            nbytes[at], largest[leader] = size, at
    return VectorWork(nbytes, of_result, batched)


def _by_vectors(rule: OpRule) -> bool:
    """True for a dot of which one operand has no rows of its own."""
    if not rule.walks or rule.blockwise or len(rule.operands) != 2:
        return False
    one, other = ({f for f in dims if f >= 0 and rule.sizes[f] > 1} for dims in rule.operands)
    return one <= other or other <= one


def _batched(rule: OpRule) -> bool:
    """True if some factor is a dim of all operands and of the result."""
    held = [set(dims) for dims in (*rule.operands, *rule.results)]
    return any(f >= 0 and rule.sizes[f] > 1 for f in set.intersection(*held))
