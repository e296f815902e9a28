"""Work of vector units, in equivalent bytes of a kernel's traffic.

GPUs add indexed updates by atomic operations, each at the cost of `XlaTraits.atomic_update_bytes`,
search rows for their largest elements at `XlaTraits.selection_bytes` each, compute convolutions
with groups at `XlaTraits.grouped_convolution_bytes`, and Fourier transforms in passes over memory
(`XlaTraits.transforms_in_passes`).
On TPUs the model fits the cycle estimates of XLA:TPU, which are linear in the bytes below:

- An elementwise kernel of wide elements (`Machine.vector_bytes` or more) takes as long as its
  traffic.
- A kernel that stores narrow elements, or reduces, takes the time of one more wide element per
  point, for any number of operands and any arithmetic.
- The epilogue of a dot adds the same work, unless the dot is stored wide. The work runs beside the
  matrix units, and so does the traffic, but for a dot of many small matrices.
- An attention op works on each score (`XlaTraits.attention_score_bytes`).
- A dot of a matrix with vectors (attention of one token to a cache) does not use the matrix units:
  vector units multiply and reduce all its points.

Evidence: kernels of 1 to 7 operands, dots over 8 to 2,048 elements, attention with heads of 8 to
1,024 numbers, and decoding, compiled for v5e and v5p.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from partir_search.ir.core import Module, Op, Value
from partir_search.ir.kind import Kind
from partir_search.ir.rule import NONE, OpRule
from partir_search.simulator.arrays import Bools, Floats, Ints
from partir_search.simulator.op_kinds import is_batched, is_reduction, op_flops
from partir_search.simulator.printing import table
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.target.traits import XlaTraits
from partir_search.simulator.time.kernels import Kernels


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class VectorWork:
    """Work of vector units in each of K kernels.

    Attributes:
      nbytes: [K] equivalent bytes, unpartitioned; 0 but for the largest in each fused kernel.
      of_result: [K] id of the value with the tiling of the work, or NONE for the op's own tiling.
      batched: [K] True for a dot of many matrices.
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
    """Computes the work of vector units in a module's kernels.

    Args:
      rules: per op id.
      width: [values] stored bytes as a multiple of the type's.
    """
    n = len(kernels.op)
    nbytes, of_result = np.zeros(n), np.full(n, NONE)
    batched = np.zeros(n, dtype=np.bool_)
    largest: dict[int, int] = {}
    wide = set[int]()  # dots stored in wide elements
    traits = machine.traits
    by_threads = (
        traits.atomic_update_bytes
        or traits.selection_bytes
        or traits.grouped_convolution_bytes
        or traits.transforms_in_passes
    )
    for at, op_id in enumerate(kernels.op.tolist() if by_threads else ()):
        op, rule = module.ops[op_id], rules[op_id]
        nbytes[at] = _atomic_bytes(op, rule, machine) + _selection_bytes(op, rule, machine)
        nbytes[at] += _grouped_bytes(op, rule, traits) + _transform_bytes(op, rule, traits)
    for at, op_id in enumerate(kernels.op.tolist() if machine.vector_bytes else ()):
        op, rule, leader = module.ops[op_id], rules[op_id], int(kernels.leader[at])
        if rule.blockwise:
            nbytes[at], batched[at] = _score_bytes(rule, traits), True
            continue
        by_vectors = _by_vectors(rule)
        if rule.contracts:
            batched[at] = is_batched(rule)
            of_result[at] = NONE if by_vectors else op.results[0].id
        stored = kernels.values(at)
        widths = [r.type.itemsize * width[r.id] for r in op.results if r.id in stored]
        narrow = any(w < machine.vector_bytes for w in widths)
        if rule.contracts and widths and not narrow:
            wide.add(at)
        per_point = is_reduction(rule) or by_vectors
        if not (narrow or per_point) or (leader in wide and leader != at):
            continue
        points = math.prod(rule.sizes if per_point else op.results[0].type.shape)
        twice = is_reduction(rule) and len(set(stored)) < len(stored)  # in place of its operand
        size = float(machine.vector_bytes * points) * (2 if twice else 1)
        before = largest.setdefault(leader, at)
        if before == at or size > nbytes[before]:
            nbytes[before] = 0.0
            nbytes[at], largest[leader] = size, at
    return VectorWork(nbytes, of_result, batched)


def _atomic_bytes(op: Op, rule: OpRule, machine: Machine) -> float:
    """Equivalent bytes of the atomic additions of an op to indexed elements; 0 for other ops."""
    if rule.kind is not Kind.SCATTER or not rule.linear or rule.one_hot:
        return 0.0
    update = op.operands[rule.update_operand].type
    each = machine.traits.atomic_update_bytes.get(str(update.dtype), 0.0)
    return each * math.prod(update.shape)


def _score_bytes(rule: OpRule, traits: XlaTraits) -> float:
    """Equivalent bytes of the work on the scores of an attention op."""
    assert rule.blockwise is not None
    scores = math.prod(rule.sizes[f] for f in rule.blockwise.scratch_factors)
    way = "backward" if rule.blockwise.returning else "forward"
    return traits.attention_score_bytes.get(way, 0.0) * scores


def _selection_bytes(op: Op, rule: OpRule, machine: Machine) -> float:
    """Equivalent bytes of finding the largest elements of rows; 0 for sorts and other ops."""
    if rule.kind is not Kind.ORDER or not isinstance(op.operands[0], Value):
        return 0.0
    searched = math.prod(op.operands[0].type.shape)
    selects = all(math.prod(r.type.shape) < searched for r in op.results)
    return machine.traits.selection_bytes * searched if selects else 0.0


def _grouped_bytes(op: Op, rule: OpRule, traits: XlaTraits) -> float:
    """Equivalent bytes of a convolution with groups; 0 for other ops."""
    if not rule.grouped_window:
        return 0.0
    arrays = [v.type.shape for v in (*op.operands, *op.results)]
    products = op_flops(op, rule) / 2.0
    elements = max(map(math.prod, arrays))
    return traits.grouped_convolution_bytes * elements + traits.grouped_product_bytes * products


def _by_vectors(rule: OpRule) -> bool:
    """True for a dot with one operand whose dims are all dims of the second operand."""
    if not rule.supports_ring or rule.blockwise or len(rule.operands) != 2:
        return False
    one, other = ({f for f in dims if f >= 0 and rule.sizes[f] > 1} for dims in rule.operands)
    return one <= other or other <= one


def _transform_bytes(op: Op, rule: OpRule, traits: XlaTraits) -> float:
    """Equivalent bytes of the passes of a Fourier transform beside the first; 0 for other ops."""
    if not (rule.transform and traits.transforms_in_passes):
        return 0.0
    to_real = not np.issubdtype(op.results[0].type.dtype, np.complexfloating)
    passes = len(rule.transform) + 2 * to_real
    return float((passes - 1) * sum(v.type.nbytes for v in (*op.operands, *op.results)))
