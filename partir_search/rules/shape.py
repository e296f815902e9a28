"""Primitives that move dims: broadcast, reshape, transpose, stack, tile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jax import lax

from partir_search.ir.core import Op, Shape
from partir_search.ir.kind import Kind
from partir_search.ir.role import Role
from partir_search.ir.rule import NONE, OpRule
from partir_search.rules.registry import register, result_shape, shape_of

Params = Mapping[str, Any]
MOVES = (("max", (0,)), ("min", (0,)))  # partial maxima and minima pass a pure movement


def identity(op: Op, blocked: frozenset[int], **fields: Any) -> OpRule:
    """Rule of an op whose operands and results share their dims; `blocked` ones are not tiled."""
    rank = len(result_shape(op))
    sizes = tuple(shape_of(op, 0)[d] if d in blocked else result_shape(op)[d] for d in range(rank))
    return OpRule(
        Kind.MOVEMENT,
        sizes=sizes,
        operands=tuple(tuple(range(rank)) if x.type.shape else () for x in op.operands),
        results=(tuple(range(rank)),) * len(op.results),
        reducers=("",) * rank,
        blocked=blocked,
        elementwise=True,
        **fields,
    )


def _local_shape(params: Params, _: Sequence[Shape], results: Sequence[Shape]) -> dict[str, Any]:
    return {**params, "shape": results[0]}


@register("broadcast_in_dim", role=Role.BROADCAST)
def broadcast_in_dim(op: Op) -> OpRule:
    """New dims and dims broadcast from size 1 are free factors of the result."""
    shape, result = shape_of(op, 0), result_shape(op)
    dims = op.params["broadcast_dimensions"]
    operand = tuple(d if shape[i] == result[d] else NONE for i, d in enumerate(dims))
    return OpRule(
        Kind.MOVEMENT,
        sizes=result,
        operands=(operand,) + ((),) * (len(op.operands) - 1),
        results=(tuple(range(len(result))),),
        reducers=("",) * len(result),
        linear=((0,),),
        monotone=MOVES,
        elementwise=True,
        localize=_local_shape,
    )


@register("iota", role=Role.INDEX_GRID)
def iota(op: Op) -> OpRule:
    """Counts from the tile's offset."""
    return _without_operands(op, localize=_local_shape, local=local_iota, at_positions=_counted_at)


@register("empty", "empty2")
def empty(op: Op) -> OpRule:
    """Uninitialised memory."""
    return _without_operands(op, localize=_local_shape if "shape" in op.params else None)


def _without_operands(op: Op, **fields: Any) -> OpRule:
    """Rule of an array made of nothing, with a factor per dim."""
    result = result_shape(op)
    return OpRule(
        Kind.MOVEMENT,
        sizes=result,
        operands=(),
        results=(tuple(range(len(result))),),
        reducers=("",) * len(result),
        elementwise=True,
        **fields,
    )


def local_iota(ctx: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """`iota` of the tile plus the tile's offset along the counted dim."""
    shape = tuple(n // ctx.tiles(d) for d, n in enumerate(result_shape(op)))
    dim, dtype = op.params["dimension"], op.params["dtype"]
    counted = lax.broadcasted_iota(dtype, shape, dim)
    if ctx.tiles(dim) == 1:
        return [counted]
    return [counted + lax.convert_element_type(ctx.tile_index(dim) * shape[dim], dtype)]


def _counted_at(op: Op, args: Sequence[Any], positions: Sequence[Any]) -> Sequence[Any]:
    """Elements of an `iota` at some positions."""
    pairs = zip(positions, result_shape(op), strict=True)
    shape = tuple(n if at is None else at.shape[0] for at, n in pairs)
    dim, dtype = op.params["dimension"], op.params["dtype"]
    if positions[dim] is None:
        return [lax.broadcasted_iota(dtype, shape, dim)]
    counted = lax.convert_element_type(positions[dim], dtype)
    return [lax.broadcast_in_dim(counted, shape, (dim,))]


Factors = tuple[tuple[int, ...], tuple[int, ...], list[int], list[tuple[int, ...]]]


def reshape_factors(old: Shape, new: Shape) -> Factors:
    """Operand and result dims, sizes and `major_factors` of a reshape's factors: a mixed radix.

    Both shapes are read from the left. The common divisor of the two current dims is a factor, and
    the quotient of the larger one continues with the next dim: [12] to [4, 3] has the factors 4 and
    3, both on the operand's dim. If the quotients have no common divisor, the remainder of the run
    of dims (up to equal products) is strided in the second shape and not tiled.
    """
    operand, result = [NONE] * len(old), [NONE] * len(new)
    sizes: list[int] = []
    major_factors: list[tuple[int, ...]] = []
    on_old: list[int] = []  # factors of the current dim
    on_new: list[int] = []
    i = j = 0
    a = b = 1  # sizes of the current dims still to be factored
    while True:
        while a == 1 and i < len(old):
            a, i, on_old = old[i], i + 1, []
        while b == 1 and j < len(new):
            b, j, on_new = new[j], j + 1, []
        if a == 1 or b == 1:
            return tuple(operand), tuple(result), sizes, major_factors
        common = math.gcd(a, b)
        if common == 1:
            while a != b:
                if a < b:
                    a, i = a * old[i], i + 1
                else:
                    b, j = b * new[j], j + 1
            a = b = 1
            continue
        f = len(sizes)
        if not on_old:
            operand[i - 1] = f
        if not on_new:
            result[j - 1] = f
        sizes.append(common)
        major_factors.append(tuple(sorted({*on_old, *on_new})))
        on_old.append(f)
        on_new.append(f)
        a, b = a // common, b // common


@register("reshape", role=Role.RESHAPE)
def reshape(op: Op) -> OpRule:
    """Splits and merges of dims; see `reshape_factors`."""
    if op.params.get("dimensions") is not None or 0 in result_shape(op):
        operand: tuple[int, ...] = (NONE,) * len(shape_of(op, 0))
        result: tuple[int, ...] = (NONE,) * len(result_shape(op))
        sizes: list[int] = []
        major_factors: list[tuple[int, ...]] = []
    else:
        operand, result, sizes, major_factors = reshape_factors(shape_of(op, 0), result_shape(op))
    return OpRule(
        Kind.MOVEMENT,
        sizes=tuple(sizes),
        operands=(operand,) + ((),) * (len(op.operands) - 1),
        results=(result,),
        reducers=("",) * len(sizes),
        major_factors=tuple(major_factors) if any(major_factors) else (),
        linear=((0,),),
        monotone=MOVES,
        elementwise=True,
        localize=lambda params, _, results: {**params, "new_sizes": results[0]},
    )


@register("squeeze", "expand_dims", role={"squeeze": Role.SQUEEZE})
def squeeze(op: Op) -> OpRule:
    """Removes or adds dims of size 1."""
    return OpRule(
        Kind.MOVEMENT,
        sizes=tuple(n for n in shape_of(op, 0) if n != 1),
        operands=(_without_ones(shape_of(op, 0)),),
        results=(_without_ones(result_shape(op)),),
        reducers=("",) * sum(n != 1 for n in shape_of(op, 0)),
        linear=((0,),),
        monotone=MOVES,
        elementwise=True,
    )


def _without_ones(shape: Shape) -> tuple[int, ...]:
    kept = [d for d, n in enumerate(shape) if n != 1]
    return tuple(kept.index(d) if d in kept else NONE for d in range(len(shape)))


@register("transpose", role=Role.TRANSPOSITION)
def transpose(op: Op) -> OpRule:
    """Result dim i is operand dim permutation[i]."""
    shape, permutation = shape_of(op, 0), op.params["permutation"]
    return OpRule(
        Kind.MOVEMENT,
        sizes=shape,
        operands=(tuple(range(len(shape))),),
        results=(tuple(permutation),),
        reducers=("",) * len(shape),
        linear=((0,),),
        monotone=MOVES,
        elementwise=True,
    )


@register("stack")
def stack(op: Op) -> OpRule:
    """All dims but the new one."""
    return _stacking(op, shape_of(op, 0))


@register("unstack")
def unstack(op: Op) -> OpRule:
    """All dims but the removed one."""
    return _stacking(op, result_shape(op))


def _stacking(op: Op, piece: Shape) -> OpRule:
    """Rule of pieces with equal dims and their stack, with one more dim, which is not tiled."""
    axis, outer = op.params["axis"], tuple(range(len(piece)))
    stacked = (*outer[:axis], NONE, *outer[axis:])
    dims = {len(piece): outer, len(piece) + 1: stacked}
    return OpRule(
        Kind.MOVEMENT,
        sizes=piece,
        operands=tuple(dims[len(x.type.shape)] for x in op.operands),
        results=tuple(dims[len(x.type.shape)] for x in op.results),
        reducers=("",) * len(piece),
        linear=(tuple(range(len(op.operands))),),
        elementwise=True,
    )


@register("tile")
def tile(op: Op) -> OpRule:
    """Copies laid end to end: a repeated dim is [copies, dim], with free copies."""
    shape, reps = shape_of(op, 0), op.params["reps"]
    sizes: list[int] = []
    major_factors: list[tuple[int, ...]] = []
    operand, result = [], []
    for n, r in zip(shape, reps, strict=True):
        copies = len(sizes)
        if r != 1:
            sizes.append(r)
            major_factors.append(())
        operand.append(len(sizes))
        result.append(copies)
        sizes.append(n)
        major_factors.append((copies,) if r != 1 else ())
    return OpRule(
        Kind.MOVEMENT,
        sizes=tuple(sizes),
        operands=(tuple(operand),),
        results=(tuple(result),),
        reducers=("",) * len(sizes),
        major_factors=tuple(major_factors) if any(major_factors) else (),
        linear=((0,),),
        elementwise=True,
        localize=_local_reps,
    )


def _local_reps(
    params: Params, operands: Sequence[Shape], results: Sequence[Shape]
) -> dict[str, Any]:
    pairs = zip(operands[0], results[0], params["reps"], strict=True)
    return {**params, "reps": tuple(m // n if n else r for n, m, r in pairs)}
