"""Ops with regions: which values flow into which, so that their tilings agree.

A region op has no factors of its own. Each of its *flows* ties a value outside to one inside; in
propagation a flow acts like an identity op, in lowering the inner value's layout is what the
outer one is brought to. Leading dims of scanned inputs and outputs (`lead`) are never tiled.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from partir_search.ir.core import Op, Value
from partir_search.ir.kind import Kind
from partir_search.ir.rule import OpRule
from partir_search.ir.trip_counts import trips_of
from partir_search.rules.registry import register, whole

Block = Callable[..., Sequence[Any]]  # emits a region: block(*args) -> results


@dataclasses.dataclass(frozen=True, slots=True)
class Examples:
    """A loop over a batch of examples that keep their values once they have finished.

    Attributes:
      decides: region whose result says whether any example goes on.
      body: region of an iteration.
      first: its first argument that is a carry; the last one says which examples go on.
    """

    decides: int
    body: int
    first: int


@dataclasses.dataclass(frozen=True, slots=True)
class Flows:
    """Flow of values in and out of an op's regions.

    Attributes:
      enters: (operand, region, argument, lead): the operand becomes the region's argument.
      leaves: (region, result, op result, lead): the region's result becomes the op's.
      carries: (region, result, region, argument): a result is an argument of the next iteration.
      finals: (region, argument, op result): the op's result is the last value of an argument.
      same: (region, argument, region, argument): two arguments that are one value.
      trips: times that each region runs (an estimate where it depends on data).
      examples: of a loop whose examples stop each by itself; else None.
    """

    enters: tuple[tuple[int, int, int, int], ...]
    leaves: tuple[tuple[int, int, int, int], ...] = ()
    carries: tuple[tuple[int, int, int, int], ...] = ()
    finals: tuple[tuple[int, int, int], ...] = ()
    same: tuple[tuple[int, int, int, int], ...] = ()
    trips: tuple[int, ...] = (1,)
    examples: Examples | None = None


KNOWN_FLOWS = 1024  # of ops alike that are kept: a search asks for them thousands of times

FLOWS: dict[str, Callable[[Op], Flows]] = {}
"""Flows of each region primitive by name."""

EMITTERS: dict[str, Callable[[Op, Sequence[Block], Sequence[Any]], Sequence[Any]]] = {}
"""How each region primitive runs, given emitters of its (local) regions."""


@register("scan", "while", "cond", "remat2", "checkpoint", "optimization_barrier")
def region_op(op: Op) -> OpRule:
    """Tilings pass through the flows, not through factors."""
    return whole(op, Kind.REGION, told=_TOLD)


_TOLD = frozenset({"differentiated", "prevent_cse", "unroll"})  # change nothing in the results


def _scan_flows(op: Op) -> Flows:
    consts, carries = op.params["num_consts"], op.params["num_carry"]
    region = op.regions[0]
    return _scan_flows_of(consts, carries, len(region.args), len(region.results), trips_of(op))


@functools.lru_cache(KNOWN_FLOWS)
def _scan_flows_of(consts: int, carries: int, args: int, results: int, trips: int) -> Flows:
    return Flows(
        enters=tuple((i, 0, i, 0 if i < consts + carries else 1) for i in range(args)),
        leaves=tuple((0, j, j, 1) for j in range(carries, results)),
        carries=tuple((0, j, 0, consts + j) for j in range(carries)),
        finals=tuple((0, consts + j, j) for j in range(carries)),
        trips=(trips,),
    )


def _emit_scan(op: Op, blocks: Sequence[Block], args: Sequence[Any]) -> Sequence[Any]:
    consts, carries = op.params["num_consts"], op.params["num_carry"]

    def body(carry: tuple[Any, ...], xs: tuple[Any, ...]) -> tuple[Any, Any]:
        out = blocks[0](*args[:consts], *carry, *xs)
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


def _while_flows(op: Op) -> Flows:
    consts = op.params["cond_nconsts"], op.params["body_nconsts"]
    stop = "examples_stop" in op.params
    return _while_flows_of(*consts, len(op.results), trips_of(op), stop)


@functools.lru_cache(KNOWN_FLOWS)
def _while_flows_of(
    cond_consts: int, body_consts: int, carries: int, trips: int, stop: bool
) -> Flows:
    first = cond_consts + body_consts
    enters = [(i, 0, i, 0) for i in range(cond_consts)]
    enters += [(cond_consts + i, 1, i, 0) for i in range(body_consts)]
    enters += [(first + j, 1, body_consts + j, 0) for j in range(carries)]
    return Flows(
        enters=tuple(enters),
        carries=tuple((1, j, 1, body_consts + j) for j in range(carries)),
        finals=tuple((1, body_consts + j, j) for j in range(carries)),
        same=tuple((0, cond_consts + j, 1, body_consts + j) for j in range(carries)),
        trips=(trips, trips),
        examples=Examples(0, 1, body_consts) if stop else None,
    )


def _emit_while(op: Op, blocks: Sequence[Block], args: Sequence[Any]) -> Sequence[Any]:
    cond_consts, body_consts = op.params["cond_nconsts"], op.params["body_nconsts"]
    first = cond_consts + body_consts
    out = lax.while_loop(
        lambda carry: blocks[0](*args[:cond_consts], *carry)[0],
        lambda carry: tuple(blocks[1](*args[cond_consts:first], *carry)),
        tuple(args[first:]),
    )
    return list(out)


def _cond_flows(op: Op) -> Flows:
    return _cond_flows_of(len(op.regions), len(op.operands), len(op.results))


@functools.lru_cache(KNOWN_FLOWS)
def _cond_flows_of(regions: int, operands: int, results: int) -> Flows:
    branches, inputs = range(regions), range(1, operands)
    return Flows(
        enters=tuple((i, 0, i - 1, 0) for i in inputs),
        leaves=tuple((b, j, j, 0) for b in branches for j in range(results)),
        same=tuple((b, i - 1, 0, i - 1) for b in branches[1:] for i in inputs),
        trips=(1,) * regions,
    )


def _emit_cond(op: Op, blocks: Sequence[Block], args: Sequence[Any]) -> Sequence[Any]:
    if (platforms := op.params.get("branches_platforms")) is not None:
        return _platform_dependent(platforms, blocks, args)
    out = lax.switch(args[0], [lambda *x, b=b: tuple(b(*x)) for b in blocks], *args[1:])
    return list(out)


def _platform_dependent(
    platforms: Sequence[Sequence[str] | None], blocks: Sequence[Block], args: Sequence[Any]
) -> Sequence[Any]:
    """A branch per platform: only the one of the target is compiled."""
    branches: dict[str, Any] = {}
    default = None
    for names, block in zip(platforms, blocks, strict=True):
        if names is None:
            default = block
        else:
            branches.update(dict.fromkeys(names, block))
    out = lax.platform_dependent(
        *args[1:],
        default=default and (lambda *x: tuple(default(*x))),
        **{name: lambda *x, b=b: tuple(b(*x)) for name, b in branches.items()},
    )
    return list(out)


def _remat_flows(op: Op) -> Flows:
    return _remat_flows_of(len(op.operands), len(op.results))


@functools.lru_cache(KNOWN_FLOWS)
def _remat_flows_of(operands: int, results: int) -> Flows:
    return Flows(
        enters=tuple((i, 0, i, 0) for i in range(operands)),
        leaves=tuple((0, j, j, 0) for j in range(results)),
    )


def _emit_remat(op: Op, blocks: Sequence[Block], args: Sequence[Any]) -> Sequence[Any]:
    """The body behind one barrier, as jax lowers it: what was to be recomputed is recomputed."""
    prevent = op.params["prevent_cse"]
    flags = prevent if isinstance(prevent, tuple) else (bool(prevent),) * len(args)
    if op.params["differentiated"] and any(flags):
        held = [i for i, flag in enumerate(flags) if flag]
        fenced = lax.optimization_barrier([args[i] for i in held])
        args = list(args)
        for i, value in zip(held, fenced, strict=True):
            args[i] = value
    return blocks[0](*args)


def _emit_barrier(op: Op, blocks: Sequence[Block], args: Sequence[Any]) -> Sequence[Any]:
    return list(lax.optimization_barrier(tuple(args)))


for _name, _flows, _emit in (
    ("scan", _scan_flows, _emit_scan),
    ("while", _while_flows, _emit_while),
    ("cond", _cond_flows, _emit_cond),
    ("remat2", _remat_flows, _emit_remat),
    ("checkpoint", _remat_flows, _emit_remat),
    ("optimization_barrier", _remat_flows, _emit_barrier),
):
    FLOWS[_name] = _flows
    EMITTERS[_name] = _emit


def flows_of(op: Op) -> Flows:
    """Flows of a region op; a KeyError would mean that the reader made a region unknown here."""
    return FLOWS[op.prim](op)


def outer_inner(op: Op) -> list[tuple[tuple[Value, int], ...]]:
    """Groups of (value, lead) that share their tiling dim by dim after `lead` dims."""
    flows = flows_of(op)
    groups: list[list[tuple[Any, int]]] = []
    place: dict[tuple[int, int], int] = {}
    for operand, region, arg, lead in flows.enters:
        place[region, arg] = len(groups)
        groups.append([(op.operands[operand], lead), (op.regions[region].args[arg], 0)])
    for region, result, to, arg in flows.carries:
        groups[place[to, arg]].append((op.regions[region].results[result], 0))
    for region, arg, result in flows.finals:
        groups[place[region, arg]].append((op.results[result], 0))
    leaving: dict[int, list[tuple[Any, int]]] = {}
    for region, result, out, lead in flows.leaves:
        group = leaving.setdefault(out, [(op.results[out], lead)])
        group.append((op.regions[region].results[result], 0))
    groups.extend(leaving.values())
    return [tuple((v, lead) for v, lead in group if isinstance(v, Value)) for group in groups]
