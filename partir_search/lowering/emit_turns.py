"""Emission of turns of products: collective matmuls and rings on diagonals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax import lax

from partir_search.ir.local_op import run_local, widened
from partir_search.ir.partition import Partition
from partir_search.ir.rule import Dims
from partir_search.lowering.collective_matmul import MatmulRing
from partir_search.lowering.device import Device, Effects
from partir_search.lowering.emit_window import coordinate
from partir_search.lowering.local_ir import MatmulTurn, RingTurn


def matmul_turn(
    partition: Partition,
    item: RingTurn,
    args: Sequence[Any],
    env: Mapping[int, Any],
    effects: Effects,
) -> Sequence[Any]:
    """Result of a product after a turn; sums stay in 32 bits until the last turn.

    Sums are sent in the result's type.
    """
    rule, op = partition.rules[item.op.id], widened(item.op)
    matmul = item if isinstance(item, MatmulTurn) else None
    index: Any = None
    if matmul:
        ring = matmul.ring
        index = (coordinate(partition.mesh, ring.axis) + matmul.offset) % ring.size
        args = [
            _block(x, dims, ring, index) if i != ring.moving else x
            for i, (x, dims) in enumerate(zip(args, rule.operands, strict=True))
        ]
    (out,) = run_local(Device(partition, op, effects), rule, op, args)
    (local,) = item.outs
    narrow = local.value.type.dtype
    for sums in item.arrived:
        out = out + env[sums.id]
    if item.arrived or (matmul and matmul.passes_results):
        return [out.astype(narrow)]
    if matmul and matmul.assembles(rule):
        dim = rule.results[0].index(matmul.ring.factor)
        result = env[local.id] if item.turn else lax.empty(local.shape, narrow)
        at = index * out.shape[dim]
        return [lax.dynamic_update_slice_in_dim(result, out.astype(narrow), at, dim)]
    if item.turn:
        out = out + env[local.id]
    return [out.astype(narrow) if item.last else out]


def _block(x: Any, dims: Dims, ring: MatmulRing, index: Any) -> Any:
    """Block number `index` of an operand; the operand itself without the ring's factor."""
    if ring.factor not in dims:
        return x
    dim = dims.index(ring.factor)
    size = x.shape[dim] // ring.size
    return lax.dynamic_slice_in_dim(x, index * size, size, dim)
