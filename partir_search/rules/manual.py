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
from partir_search.ir.manual import Manual, OwnCollective, run_manual
from partir_search.ir.rule import NONE, OpRule
from partir_search.rules.registry import RULES, register


@register("shard_map")
def manual_region(op: Op) -> OpRule:
    """Operands and results as the region's specs say, on the axes that it names."""
    manual: Manual = op.params["manual"]
    products = any(RULES[o.prim](o).contracts for o, _ in _ops(manual.body) if o.prim in RULES)
    return OpRule(
        Kind.CONTRACTION if products else Kind.REGION,
        sizes=(1,),
        operands=tuple((NONE,) * len(x.type.shape) for x in op.operands),
        results=tuple((NONE,) * len(x.type.shape) for x in op.results),
        reducers=("sum",),
        blocked=frozenset({0}),
        manual=dataclasses.replace(manual, collectives=tuple(_collectives(manual.body))),
        flops_per_point=sum(_flops(manual.body)),
        local=local_region,
    )


def _ops(region: Region, times: int = 1) -> Iterator[tuple[Op, int]]:
    """The ops of a body that have no regions, and how often each runs."""
    for op in region.ops:
        if inner := op.params.get("manual"):
            yield from _ops(inner.body, times)
        if not op.regions:
            yield op, times
        else:
            for inner, trips in zip(
                op.regions, RULES[op.prim](op).data_flow.trip_counts, strict=True
            ):
                yield from _ops(inner, times * trips)


def _flops(region: Region) -> Iterator[float]:
    """Operations of a body's ops."""
    for op, times in _ops(region):
        if op.prim in RULES and "manual" not in op.params:
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


def _collectives(region: Region) -> Iterator[OwnCollective]:
    """The collectives of a body, one per array that is moved."""
    for op, times in _ops(region):
        if op.prim in _KINDS:
            names = op.params.get("axes") or op.params["axis_name"]
            axes = tuple(names) if isinstance(names, tuple | list) else (names,)
            for x, result in zip(op.operands, op.results, strict=True):
                nbytes = max(x.type.nbytes, result.type.nbytes)
                kind, size = _KINDS[op.prim], x.type.itemsize
                yield OwnCollective(kind, axes, result.name, nbytes, size, times)
        elif inner := op.params.get("manual"):  # its results are gathered
            for result, spec in zip(op.results, inner.makes, strict=True):
                for axes in filter(None, spec):
                    made = result.type
                    yield OwnCollective(
                        "all_gather", axes, result.name, made.nbytes, made.itemsize, times
                    )


def _emit_of(op: Op) -> Emit:
    emit = RULES[op.prim](op).emit
    assert emit is not None, op.prim
    return emit


def local_region(ctx: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """The body on this device's tiles; by the oracle, as jax runs it."""
    if not ctx.on_mesh:
        return bind(op, {k: v for k, v in op.params.items() if k != "manual"}, args)
    return run_manual(op.params["manual"], args, _emit_of)
