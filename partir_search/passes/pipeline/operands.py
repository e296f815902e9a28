"""Operands of a loop over microbatches, as a pipeline reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import lax

from partir_search.ir.core import Operand, Value
from partir_search.passes.pipeline.body_values import Arrays, BodyValues
from partir_search.passes.pipeline.layer_order import Orders, stages_of
from partir_search.passes.pipeline.layers import Layers
from partir_search.passes.pipeline.loop_parts import LoopParts, Part
from partir_search.passes.roll import operands_behind


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Operands:
    """Arrays of the loop's operands.

    Attributes:
      known: values equal in every microbatch.
      data: by argument of the body, an array with a row for each microbatch.
      totals: the loop's carries before the loop.
      forward: stacked operands of the forward layers, by stage as in `by_stage`.
      fixed: results of the forward layers that no microbatch changes, by position among the stacks,
        of all layers.
      backward: stacked operands of the backward layers by position, without residuals of a
        microbatch.
    """

    known: Arrays
    data: Mapping[Value, Any]
    totals: Sequence[Any]
    forward: Sequence[Any]
    fixed: Mapping[int, Any]
    backward: Mapping[int, Any]

    def of_microbatch(self, number: Any) -> Arrays:
        """Values known at the start of a microbatch."""
        rows = {
            v: lax.dynamic_index_in_dim(x, number, keepdims=False, allow_negative_indices=False)
            for v, x in self.data.items()
        }
        return {**self.known, **rows}


def operands_of(
    parts: LoopParts,
    values: BodyValues,
    arrays: Sequence[Any],
    stages: int,
    chunks: int,
    orders: Orders,
) -> Operands:
    """Operands of the loop, for a pipeline, from arrays in the order of its op.

    Args:
      orders: of the stacks of a staged state, by argument of the body.
    """
    first, totals = len(parts.consts), len(parts.totals)
    consts = dict(zip(parts.consts, arrays[:first], strict=True))
    data = dict(zip(parts.data, arrays[first + totals :], strict=True))
    shared = _shared(parts)
    known = {**consts, **dict(zip(shared, values.compute(shared, consts), strict=True))}

    by_operand: dict[int, Any] = {}  # both passes read one array of each parameter

    def stacked(layers: Layers, positions: Sequence[int]) -> dict[int, Any]:
        wanted = [layers.stacked[i] for i in positions]
        found = values.compute(wanted, known)
        for operand, x in zip(wanted, found, strict=True):
            if id(operand) not in by_operand:
                by_operand[id(operand)] = stages_of(x, stages, chunks, orders.get(operand))
        return {i: by_operand[id(x)] for i, x in zip(positions, wanted, strict=True)}

    forward = stacked(parts.forward, range(len(parts.forward.stacked)))
    given = [i for i in range(len(parts.backward.stacked)) if i not in parts.residuals]
    backward = stacked(parts.backward, given)
    fixed = _fixed(parts, values, known, list(forward.values()), 2 if chunks == 1 else 3)
    backward |= {i: fixed[j] for i, j in parts.residuals.items() if j in fixed}
    given_totals = arrays[first : first + totals]
    return Operands(known, data, given_totals, list(forward.values()), fixed, backward)


def _shared(parts: LoopParts) -> list[Value]:
    """Values equal in every microbatch, read by ops with different results.

    Zeros and the like are left out: the ticks' kernels make zeros.
    """
    found: dict[Value, None] = {}
    fills = {r for op in parts.body.ops if op.is_constant for r in op.results}
    for op in parts.body.ops:
        varies = any(parts.varies(r) for r in op.results)
        for _, v in op.inputs() if varies else ():
            if v not in fills and not parts.varies(v) and parts.place(v) is Part.ENTRY:
                found[v] = None
    return list(found)


def fixed_residuals(parts: LoopParts) -> list[int]:
    """Positions of the forward stacks independent of the microbatch: casts of weights."""
    layers = parts.forward
    consts, carries = len(layers.consts), len(layers.finals)
    differing = {i for i, x in enumerate(layers.consts) if parts.varies(x)}
    differing |= set(range(consts, consts + carries))
    kept = sorted(set(parts.residuals.values()))
    return [j for j in kept if differing.isdisjoint(operands_behind(layers.op, carries + j))]


def _fixed(
    parts: LoopParts, values: BodyValues, known: Arrays, stacked: Sequence[Any], dims: int
) -> dict[int, Any]:
    """Residuals independent of the microbatch, by position among the forward stacks.

    Args:
      dims: number of leading dims of layers in `stacked`.
    """
    wanted, layers = fixed_residuals(parts), parts.forward
    if not wanted:
        return {}
    args = layers.region.args
    consts, carries = len(layers.consts), len(layers.finals)
    same = [(a, x) for a, x in zip(args, layers.consts, strict=False) if not parts.varies(x)]
    read: list[Operand] = [x for _, x in same]
    arrays = dict(zip((a for a, _ in same), values.compute(read, known), strict=True))
    inner = BodyValues(layers.region, values.constants)
    results = [layers.region.results[carries + j] for j in wanted]

    def one_layer(*rows: Any) -> list[Any]:
        given = dict(zip(args[consts + carries :], rows, strict=True))
        return inner.compute(results, {**arrays, **given})

    every: Callable[..., list[Any]] = one_layer
    for _ in range(dims):
        every = jax.vmap(every)
    made = every(*stacked)
    return dict(zip(wanted, made, strict=True))
