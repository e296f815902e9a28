"""Emits turns of products whose blocks go round a ring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax import lax

from partir_search.ir.local_op import run_local, widened
from partir_search.ir.partition import Partition
from partir_search.ir.rule import Dims
from partir_search.lowering.collective_matmul import Walk
from partir_search.lowering.device import Device, Effects
from partir_search.lowering.emit_window import coordinate
from partir_search.lowering.local_ir import MatmulTurn, RingTurn


def product_turn(
    partition: Partition,
    item: RingTurn,
    args: Sequence[Any],
    env: Mapping[int, Any],
    effects: Effects,
) -> Sequence[Any]:
    """The product of a turn and those before, in 32 bits where the result has fewer."""
    rule, op = partition.rules[item.op.id], widened(item.op)
    part = item if isinstance(item, MatmulTurn) else None
    index: Any = None
    if part:
        walk = part.walk
        index = (coordinate(partition.mesh, walk.axis) + part.offset) % walk.size
        args = [
            _part(x, dims, walk, index) if i != walk.moving else x
            for i, (x, dims) in enumerate(zip(args, rule.operands, strict=True))
        ]
    (out,) = run_local(Device(partition, op, effects), rule, op, args)
    (local,) = item.outs
    narrow = local.value.type.dtype
    for sums in item.arrived:  # in the type of the result
        out = out + env[sums.id]
    if item.arrived or (part and part.passes_results):
        return [out.astype(narrow)]
    if part and part.assembles(rule):
        dim = rule.results[0].index(part.walk.factor)
        whole = env[local.id] if item.turn else lax.empty(local.shape, narrow)
        at = index * out.shape[dim]
        return [lax.dynamic_update_slice_in_dim(whole, out.astype(narrow), at, dim)]
    if item.turn:
        out = out + env[local.id]
    return [out.astype(narrow) if item.last else out]


def _part(x: Any, dims: Dims, walk: Walk, index: Any) -> Any:
    """The block of an operand that a turn works on."""
    if walk.factor not in dims:
        return x
    dim = dims.index(walk.factor)
    size = x.shape[dim] // walk.size
    return lax.dynamic_slice_in_dim(x, index * size, size, dim)
