"""Matrix products, reductions, cumulative ops and sorts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from partir_search.ir.bind import bind
from partir_search.ir.core import Op
from partir_search.ir.kind import Kind
from partir_search.ir.role import Role
from partir_search.ir.rule import NONE, OpRule
from partir_search.rules.largest import largest
from partir_search.rules.registry import register, shape_of


@register("dot_general", role=Role.DOT)
def dot_general(op: Op) -> OpRule:
    """Batch dims, free dims of each side, and contracted pairs, summed."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = op.params["dimension_numbers"]
    lhs, rhs = shape_of(op, 0), shape_of(op, 1)
    lhs_dims, rhs_dims = [NONE] * len(lhs), [NONE] * len(rhs)
    sizes: list[int] = []

    def factor(size: int) -> int:
        sizes.append(size)
        return len(sizes) - 1

    for i, j in zip(lhs_batch, rhs_batch, strict=True):
        lhs_dims[i] = rhs_dims[j] = factor(lhs[i])
    for i in range(len(lhs)):
        if i not in lhs_batch and i not in lhs_contract:
            lhs_dims[i] = factor(lhs[i])
    for j in range(len(rhs)):
        if j not in rhs_batch and j not in rhs_contract:
            rhs_dims[j] = factor(rhs[j])
    outer = len(sizes)
    for i, j in zip(lhs_contract, rhs_contract, strict=True):
        lhs_dims[i] = rhs_dims[j] = factor(lhs[i])
    return OpRule(
        Kind.CONTRACTION if len(sizes) > outer else Kind.ELEMENTWISE,
        sizes=tuple(sizes),
        operands=(tuple(lhs_dims), tuple(rhs_dims)),
        results=(tuple(range(outer)),),
        reducers=("",) * outer + ("sum",) * (len(sizes) - outer),
        linear=((0,), (1,)),
        flops_per_point=2.0,
    )


@register("ragged_dot_general")
def ragged_dot(op: Op) -> OpRule:
    """[m, k] by [g, k, n] in ragged groups of rows: rows and columns are tiled, k is summed.

    A tile of rows overlaps some rows of each group. Forms with a ragged or batched contraction (the
    weights' gradient, [k, m] by [m, n] to [g, k, n]) loop over their free dims only.
    """
    p = op.params["ragged_dot_dimension_numbers"]
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = p.dot_dimension_numbers
    ragged, groups = set(p.lhs_ragged_dimensions), set(p.rhs_group_dimensions)
    lhs, rhs, out = shape_of(op, 0), shape_of(op, 1), op.results[0].type.shape
    lhs_dims, rhs_dims = [NONE] * len(lhs), [NONE] * len(rhs)
    sizes: list[int] = []
    reducers: list[str] = []
    blocked: set[int] = set()

    def factor(size: int, reducer: str = "") -> int:
        sizes.append(size)
        reducers.append(reducer)
        return len(sizes) - 1

    out_dims: list[int] = []
    if ragged & set(lhs_contract):
        blocked.add(factor(out[0], "sum"))  # the result's groups are not tiled
        out_dims.append(NONE)
    for i, j in zip(lhs_batch, rhs_batch, strict=True):
        f = lhs_dims[i] = rhs_dims[j] = factor(lhs[i])
        out_dims.append(f)
        if i in ragged:
            blocked.add(f)
    for i in (i for i in range(len(lhs)) if i not in (*lhs_batch, *lhs_contract)):
        lhs_dims[i] = factor(lhs[i])
        out_dims.append(lhs_dims[i])
    for j in (j for j in range(len(rhs)) if j not in (*rhs_batch, *rhs_contract)):
        if j not in groups:
            rhs_dims[j] = factor(rhs[j])
            out_dims.append(rhs_dims[j])
    for i, j in zip(lhs_contract, rhs_contract, strict=True):
        lhs_dims[i] = rhs_dims[j] = factor(lhs[i], "sum")
        if i in ragged:
            blocked.add(lhs_dims[i])
    sizes_dims = (NONE,) * len(shape_of(op, 2))
    if len(sizes_dims) > 1:  # different group sizes per batch element
        blocked |= {lhs_dims[i] for i in lhs_batch}
    return OpRule(
        Kind.CONTRACTION,
        sizes=tuple(sizes),
        operands=(tuple(lhs_dims), tuple(rhs_dims), sizes_dims),
        results=(tuple(out_dims),),
        reducers=tuple(reducers),
        blocked=frozenset(blocked),
        linear=((0,), (1,)),
        tolerates_padding=False,  # group sizes count rows
        flops_per_point=2.0,
        local=local_ragged_dot,
    )


def local_ragged_dot(ctx: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """Rows of this tile, multiplied by the matrices of the groups inside of the tile."""
    lhs, rhs, groups = args
    (row,) = op.params["ragged_dot_dimension_numbers"].lhs_ragged_dimensions
    f = ragged_dot(op).operands[0][row]
    if f >= 0 and ctx.tiles(f) > 1:
        first = (ctx.tile_index(f) * lhs.shape[row]).astype(groups.dtype)
        ends = jnp.cumsum(groups)
        last = first + lhs.shape[row]
        groups = jnp.clip(ends, first, last) - jnp.clip(ends - groups, first, last)
    return bind(op, op.params, (lhs, rhs, groups))


_MONOIDS = {
    "reduce_sum": "sum",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_and": "and",
    "reduce_or": "or",
}


def _reduction(op: Op, monoid: str, **fields: Any) -> OpRule:
    shape, axes = shape_of(op, 0), op.params["axes"]
    kept = tuple(d for d in range(len(shape)) if d not in axes)
    return OpRule(
        Kind.REDUCTION,
        sizes=shape,
        operands=(tuple(range(len(shape))),) * len(op.operands),
        results=(kept,) * len(op.results),
        reducers=tuple("" if d in kept else monoid for d in range(len(shape))),
        flops_per_point=1.0,
        **fields,
    )


@register(*_MONOIDS, role={"reduce_sum": Role.SUM})
def reduction(op: Op) -> OpRule:
    """Reduced dims are combined by the op's own monoid."""
    monoid = _MONOIDS[op.prim]
    linear = ((0,),) if monoid == "sum" else ()
    monotone = ((monoid, (0,)),) if monoid in ("max", "min") else ()
    return _reduction(op, monoid, linear=linear, monotone=monotone)


@register("reduce_prod", "reduce_xor")
def reduction_whole(op: Op) -> OpRule:
    """Reduced dims are blocked: no collective combines products or exclusive ors."""
    blocked = frozenset(op.params["axes"])
    return _reduction(op, "sum", blocked=blocked)


@register("argmax", "argmin")
def arg_reduction(op: Op) -> OpRule:
    """The reduced dim is blocked: no collective combines (value, index) pairs."""
    return _reduction(op, "sum", blocked=frozenset(op.params["axes"]))


@register("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def cumulative(op: Op) -> OpRule:
    """Loops over all dims but the cumulative one."""
    rank = len(shape_of(op, 0))
    return OpRule(
        Kind.CUMULATIVE,
        sizes=shape_of(op, 0),
        operands=(tuple(range(rank)),),
        results=(tuple(range(rank)),),
        reducers=("",) * rank,
        blocked=frozenset({op.params["axis"]}),
        linear=((0,),) if op.prim == "cumsum" else (),
        flops_per_point=2.0,
    )


@register("reduce")
def reduction_by_function(op: Op) -> OpRule:
    """Reduced dims are blocked: no collective combines by the user's function."""
    shape, reduced = shape_of(op, 0), frozenset(op.params["dimensions"])
    dims = tuple(range(len(shape)))
    return OpRule(
        Kind.REDUCTION,
        sizes=shape,
        operands=tuple(dims if x.type.shape == shape else () for x in op.operands),
        results=(tuple(d for d in dims if d not in reduced),) * len(op.results),
        reducers=tuple("sum" if d in reduced else "" for d in dims),
        blocked=reduced,
        flops_per_point=2.0,
    )


@register("sort")
def sort(op: Op) -> OpRule:
    """Loops over all dims but the sorted one."""
    rank = len(shape_of(op, 0))
    dims = tuple(range(rank))
    return OpRule(
        Kind.ORDER,
        sizes=shape_of(op, 0),
        operands=(dims,) * len(op.operands),
        results=(dims,) * len(op.results),
        reducers=("",) * rank,
        blocked=frozenset({op.params["dimension"]}),
        flops_per_point=10.0,
    )


@register("top_k", "approx_top_k")
def top_k(op: Op) -> OpRule:
    """Loops over all dims but the searched one."""
    shape = shape_of(op, 0)
    axis = op.params.get("axis", op.params.get("reduction_dimension", -1)) % len(shape)
    dims = tuple(NONE if d == axis else d for d in range(len(shape)))
    of_last = op.prim == "top_k" and axis == len(shape) - 1
    return OpRule(
        Kind.ORDER,
        sizes=shape,
        operands=(dims,),
        results=(dims, dims),
        reducers=tuple("" if d != axis else "sum" for d in range(len(shape))),
        blocked=frozenset({axis}),
        flops_per_point=4.0,
        local=_local_top_k if of_last and len(shape) > 2 else None,
    )


def _local_top_k(ctx: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    return largest(args[0], op.params["k"])
