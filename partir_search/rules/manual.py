"""`shard_map` regions of the user's own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from partir_search.ir.bind import bind
from partir_search.ir.core import Op, Region
from partir_search.ir.data_flow import Emit
from partir_search.ir.kind import Kind
from partir_search.ir.manual import Manual, OwnCollective, axis_names
from partir_search.ir.rule import NONE, OpRule
from partir_search.rules.registry import RULES, edges_of, register
from partir_search.rules.run_manual import run_manual


@register("shard_map")
def manual_region(op: Op) -> OpRule:
    """Operands and results have the layouts of the region's specs."""
    manual: Manual = op.params["manual"]
    return OpRule(
        Kind.CONTRACTION if _products(manual) else Kind.REGION,
        sizes=(1,),
        operands=tuple((NONE,) * len(x.type.shape) for x in op.operands),
        results=tuple((NONE,) * len(x.type.shape) for x in op.results),
        reducers=("sum",),
        blocked=frozenset({0}),
        manual=dataclasses.replace(manual, collectives=tuple(_collectives(manual))),
        flops_per_point=sum(_flops(manual)),
        local=local_region,
    )


def _ops(region: Region, times: int = 1) -> Iterator[tuple[Op, int]]:
    """(op, number of runs) of the ops of a body without regions; nested shard_maps included."""
    for op in region.ops:
        if not op.regions:
            yield op, times
        else:
            for inner, trips in zip(op.regions, edges_of(op).trip_counts, strict=True):
                yield from _ops(inner, times * trips)


def _products(manual: Manual) -> bool:
    """True if some op of a region is a contraction."""
    ops = (op for op, _ in _ops(manual.body) if op.prim in RULES)
    return any(map(_products, manual.inner())) or any(
        RULES[op.prim](op).contracts for op in ops if "manual" not in op.params
    )


def _flops(manual: Manual, repeated: int = 1) -> Iterator[float]:
    """Floating-point operations of a region's ops."""
    for op, times in _ops(manual.body, repeated):
        if inner := op.params.get("manual"):
            yield from _flops(inner, times)
        elif op.prim in RULES:
            rule = RULES[op.prim](op)
            yield times * rule.flops_per_point * math.prod(rule.sizes)


_KINDS = {
    "all_gather": "all_gather",
    "all_gather_invariant": "all_gather",
    "all_to_all": "all_to_all",
    "pmax": "all_reduce",
    "pmin": "all_reduce",
    "ppermute": "collective_permute",
    "psum": "all_reduce",
    "psum_invariant": "all_reduce",
    "reduce_scatter": "reduce_scatter",
}


def _collectives(manual: Manual, repeated: int = 1) -> Iterator[OwnCollective]:
    """Collectives of a region, one per array moved.

    Args:
      repeated: runs of the region.
    """
    for op, times in _ops(manual.body, repeated):
        if op.prim in _KINDS:
            own, kind = axis_names(op.params), _KINDS[op.prim]
            axes = manual.program_axes(own)
            if kind == "all_to_all" and manual.size(own) == 1:
                continue  # dropped by jax
            if kind == "all_reduce" and not axes:
                continue  # likewise
            for x, result in zip(op.operands, op.results, strict=True):
                nbytes = max(x.type.nbytes, result.type.nbytes)
                yield OwnCollective(kind, axes, result.name, nbytes, x.type.itemsize, times)
        elif inner := op.params.get("manual"):
            yield from _collectives(inner, times)
            for result, spec in zip(op.results, inner.makes, strict=True):  # gathered
                for names in filter(None, spec):
                    made = result.type
                    yield OwnCollective(
                        "all_gather", names, result.name, made.nbytes, made.itemsize, times
                    )


def _emit_of(op: Op) -> Emit:
    emit = RULES[op.prim](op).emit
    assert emit is not None, op.prim
    return emit


def local_region(ctx: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """Results of the body on this device's tiles; in the interpreter, of jax's own `shard_map`."""
    if ctx.mesh is None:
        return bind(op, {k: v for k, v in op.params.items() if k != "manual"}, args)
    return run_manual(op.params["manual"], args, _emit_of, ctx.mesh)
