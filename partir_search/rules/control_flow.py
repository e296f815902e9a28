"""Ops with regions: data-flow edges and emitters."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from jax import lax

from partir_search.ir.core import Op
from partir_search.ir.data_flow import (
    CarryEdge,
    DataFlowEdges,
    Emit,
    ExampleLoop,
    FinalEdge,
    InputEdge,
    OutputEdge,
    RegionFunction,
    SharedEdge,
)
from partir_search.ir.kind import Kind
from partir_search.ir.role import Role
from partir_search.ir.rule import OpRule
from partir_search.ir.trip_counts import trips_of
from partir_search.rules.registry import register, whole

KNOWN_EDGES = 1024  # cached signatures: layers and steps repeat them

ACCUMULATES = "accumulates"  # parameter of a scan over microbatches: True, or TICKS
TICKS = "ticks"  # of a pipeline over stages
STAGED = "staged"  # number of carries with a dim of stages, of several stacks of layers

_TOLD = frozenset(
    {ACCUMULATES, STAGED, "differentiated", "prevent_cse", "unroll"}
)  # no effect on results


def region_op(op: Op, data_flow: DataFlowEdges, emit: Emit) -> OpRule:
    """Rule of a region op: tilings propagate along data-flow edges, not through factors."""
    return whole(op, Kind.REGION, data_flow=data_flow, emit=emit, implied_params=_TOLD)


@register("scan", role=Role.SCAN)
def scan(op: Op) -> OpRule:
    """Constants, carries and stacked inputs to carries and stacked outputs."""
    counts = op.params["num_consts"], op.params["num_carry"]
    sizes = len(op.operands), len(op.results), trips_of(op)
    edges = _scan_edges(*counts, *sizes, bool(op.params.get(ACCUMULATES)))
    return region_op(op, edges, _emit_scan)


@functools.lru_cache(KNOWN_EDGES)
def _scan_edges(
    consts: int, carries: int, args: int, results: int, trips: int, accumulates: bool
) -> DataFlowEdges:
    return DataFlowEdges(
        inputs=tuple(InputEdge(i, 0, i, int(i >= consts + carries)) for i in range(args)),
        outputs=tuple(OutputEdge(0, j, j, 1) for j in range(carries, results)),
        carries=tuple(CarryEdge(0, j, 0, consts + j) for j in range(carries)),
        finals=tuple(FinalEdge(0, consts + j, j) for j in range(carries)),
        trip_counts=(trips,),
        accumulates=accumulates,
    )


def _emit_scan(op: Op, bodies: Sequence[RegionFunction], args: Sequence[Any]) -> Sequence[Any]:
    consts, carries = op.params["num_consts"], op.params["num_carry"]

    def body(carry: tuple[Any, ...], xs: tuple[Any, ...]) -> tuple[Any, Any]:
        out = bodies[0](*args[:consts], *carry, *xs)
        return tuple(out[:carries]), tuple(out[carries:])

    carry, ys = lax.scan(
        body,
        tuple(args[consts : consts + carries]),
        tuple(args[consts + carries :]),
        length=op.params["length"],
        reverse=op.params["reverse"],
        unroll=op.params["unroll"],
    )
    return [*carry, *ys]


@register("while")
def while_loop(op: Op) -> OpRule:
    """Constants of the condition, constants of the body, and carries of both."""
    counts = op.params["cond_nconsts"], op.params["body_nconsts"], len(op.results)
    edges = _while_edges(*counts, trips_of(op), "examples_stop" in op.params)
    return region_op(op, edges, _emit_while)


@functools.lru_cache(KNOWN_EDGES)
def _while_edges(
    cond_consts: int, body_consts: int, carries: int, trips: int, stop: bool
) -> DataFlowEdges:
    first = cond_consts + body_consts
    inputs = [InputEdge(i, 0, i) for i in range(cond_consts)]
    inputs += [InputEdge(cond_consts + i, 1, i) for i in range(body_consts)]
    inputs += [InputEdge(first + j, 1, body_consts + j) for j in range(carries)]
    return DataFlowEdges(
        inputs=tuple(inputs),
        carries=tuple(CarryEdge(1, j, 1, body_consts + j) for j in range(carries)),
        finals=tuple(FinalEdge(1, body_consts + j, j) for j in range(carries)),
        shared=tuple(SharedEdge(0, cond_consts + j, 1, body_consts + j) for j in range(carries)),
        trip_counts=(trips, trips),
        examples=ExampleLoop(0, 1, body_consts) if stop else None,
    )


def _emit_while(op: Op, bodies: Sequence[RegionFunction], args: Sequence[Any]) -> Sequence[Any]:
    cond_consts, body_consts = op.params["cond_nconsts"], op.params["body_nconsts"]
    first = cond_consts + body_consts
    out = lax.while_loop(
        lambda carry: bodies[0](*args[:cond_consts], *carry)[0],
        lambda carry: tuple(bodies[1](*args[cond_consts:first], *carry)),
        tuple(args[first:]),
    )
    return list(out)


@register("cond")
def conditional(op: Op) -> OpRule:
    """A replicated index, and operands passed to every branch."""
    runs = op.params.get("runs", (1,) * len(op.regions))
    edges = _cond_edges(runs, len(op.operands), len(op.results))
    return region_op(op, edges, _emit_cond)


@functools.lru_cache(KNOWN_EDGES)
def _cond_edges(runs: tuple[int, ...], operands: int, results: int) -> DataFlowEdges:
    branches, inputs = range(len(runs)), range(1, operands)
    return DataFlowEdges(
        inputs=tuple(InputEdge(i, 0, i - 1) for i in inputs),
        outputs=tuple(OutputEdge(b, j, j) for b in branches for j in range(results)),
        shared=tuple(SharedEdge(b, i - 1, 0, i - 1) for b in branches[1:] for i in inputs),
        trip_counts=runs,
    )


def _emit_cond(op: Op, bodies: Sequence[RegionFunction], args: Sequence[Any]) -> Sequence[Any]:
    if (platforms := op.params.get("branches_platforms")) is not None:
        return _platform_dependent(platforms, bodies, args)
    out = lax.switch(args[0], [lambda *x, b=b: tuple(b(*x)) for b in bodies], *args[1:])
    return list(out)


def _platform_dependent(
    platforms: Sequence[Sequence[str] | None], bodies: Sequence[RegionFunction], args: Sequence[Any]
) -> Sequence[Any]:
    """A branch per platform: only the branch of the target is compiled."""
    branches: dict[str, Any] = {}
    default = None
    for names, body in zip(platforms, bodies, strict=True):
        if names is None:
            default = body
        else:
            branches.update(dict.fromkeys(names, body))
    out = lax.platform_dependent(
        *args[1:],
        default=default and (lambda *x: tuple(default(*x))),
        **{name: lambda *x, b=b: tuple(b(*x)) for name, b in branches.items()},
    )
    return list(out)


@register("remat2", "checkpoint", role=Role.CHECKPOINT)
def rematerialized(op: Op) -> OpRule:
    """A region that runs once, and again in the backward pass."""
    return region_op(op, _pass_edges(len(op.operands), len(op.results)), _emit_remat)


@register("optimization_barrier")
def barrier(op: Op) -> OpRule:
    """Operands, each with a tiling of its own."""
    return region_op(op, _pass_edges(len(op.operands), len(op.results)), _emit_barrier)


@functools.lru_cache(KNOWN_EDGES)
def _pass_edges(operands: int, results: int) -> DataFlowEdges:
    return DataFlowEdges(
        inputs=tuple(InputEdge(i, 0, i) for i in range(operands)),
        outputs=tuple(OutputEdge(0, j, j) for j in range(results)),
        trip_counts=(1,),
    )


def _emit_remat(op: Op, bodies: Sequence[RegionFunction], args: Sequence[Any]) -> Sequence[Any]:
    """Body after one barrier, as lowered by jax: without it XLA's CSE would undo the remat."""
    prevent = op.params["prevent_cse"]
    flags = prevent if isinstance(prevent, tuple) else (bool(prevent),) * len(args)
    if op.params["differentiated"] and any(flags):
        guarded = [i for i, flag in enumerate(flags) if flag]
        fenced = lax.optimization_barrier([args[i] for i in guarded])
        args = list(args)
        for i, value in zip(guarded, fenced, strict=True):
            args[i] = value
    return bodies[0](*args)


def _emit_barrier(op: Op, bodies: Sequence[RegionFunction], args: Sequence[Any]) -> Sequence[Any]:
    return list(lax.optimization_barrier(tuple(args)))
