"""Selections (argmax, argmin, top_k) in two steps: candidates of each tile, and the best of all.

`passes.block_selections` writes both primitives in place of a selection along a dim of n elements,
seen as t blocks of n / t elements. Only the candidates of the tiles are replicated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from partir_search.ir.core import Op, Operand, Value
from partir_search.ir.kind import Kind
from partir_search.ir.reducers import identity
from partir_search.ir.rule import NONE, OpRule
from partir_search.rules.largest import largest
from partir_search.rules.registry import register, shape_of

EXTREMES = {"argmax": (lax.argmax, lax.gt, "max"), "argmin": (lax.argmin, lax.lt, "min")}
"""By primitive: the position of the first extreme element along a dim, the comparison, and the
monoid."""


def selected_dim(op: Op) -> int:
    """Dim of the operand along which an op selects elements; `NONE` for an op of another kind."""
    if op.prim in EXTREMES and np.dtype(op.params["index_dtype"]).itemsize >= 4:
        return int(op.params["axes"][0])
    last = len(op.operands[0].type.shape) - 1 if op.operands else NONE
    return last if op.prim == "top_k" and op.params.get("axis", last) in (last, -1) else NONE


def selected_elements(op: Op) -> int:
    """Number of elements selected along the dim."""
    return int(op.params.get("k", 1))


def candidates(op: Op, blocks: Operand, results: Sequence[Value]) -> Op:
    """Candidates of each tile of blocks.

    Args:
      op: the selection along the full dim.
      blocks: [..., t, n / t, ...] operand of `op`.
      results: candidates [..., t, ...] ([..., t, k] of a top_k) and their positions.
    """
    dim, count = selected_dim(op), blocks.type.shape[selected_dim(op)]
    if op.prim in EXTREMES:
        kind = np.dtype(op.params["index_dtype"])
        params = {"selects": op.prim, "dimension": dim, "blocks": count, "index_dtype": kind}
        return _made(block_extremes, op, (blocks,), results, params)
    params = {"k": op.params["k"], "blocks": count}
    return _made(block_top_k, op, (blocks,), results, params)


def best_of_all(op: Op, found: Sequence[Value], results: Sequence[Value]) -> Op:
    """Selection from the candidates of all tiles.

    Args:
      op: the selection along the full dim.
      found: results of `candidates`.
      results: results of `op`.
    """
    dim = selected_dim(op)
    size = op.operands[0].type.shape[dim] // found[0].type.shape[dim]
    if op.prim in EXTREMES:
        params = {"selects": op.prim, "dimension": dim, "size": size}
        return _made(best_extreme, op, found, results, params)
    return _made(best_top_k, op, found, results, {"size": size})


def _made(
    primitive: Primitive,
    near: Op,
    operands: Sequence[Operand],
    results: Sequence[Value],
    params: dict[str, Any],
) -> Op:
    return Op(
        id=-1,
        prim=primitive.name,
        operands=tuple(operands),
        results=tuple(results),
        params=params,
        origin=near.origin,
        scope=near.scope,
        backward=near.backward,
        handle=primitive,
    )


def _primitive(name: str, run: Any) -> Primitive:
    """Primitive of several results, run and compiled as the function `run`."""
    new = Primitive(name)
    new.multiple_results = True

    def abstract(*avals: Any, **params: Any) -> list[Any]:
        kinds = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
        out = jax.eval_shape(lambda *xs: run(*xs, **params), *kinds)
        return [jax.core.ShapedArray(x.shape, x.dtype) for x in out]

    new.def_impl(run)
    new.def_abstract_eval(abstract)
    mlir.register_lowering(new, mlir.lower_fun(run, multiple_results=True))
    return new


# Extremes ---------------------------------------------------------------------------------------


def _block_extremes(
    x: Any, *, selects: str, dimension: int, blocks: int, index_dtype: Any
) -> list[Any]:
    """The tile's extreme and the position in the tile, in the first block; no further block wins.

    A tile of all blocks needs no extreme: any winning number will do.
    """
    position, _, monoid = EXTREMES[selects]
    held, size = x.shape[dimension : dimension + 2]
    shape = (*x.shape[:dimension], held * size, *x.shape[dimension + 2 :])
    tile = lax.reshape(x, shape)
    out = (*shape[:dimension], held, *shape[dimension + 1 :])
    first = lax.broadcasted_iota(jnp.int32, out, dimension) == 0
    if held == blocks:
        at = position(tile, dimension, index_dtype)
        best = (first == (selects == "argmax")).astype(x.dtype)
    else:
        found, at = _extreme(tile, selects, dimension, index_dtype)
        best = jnp.where(first, jnp.expand_dims(found, dimension), identity(monoid, x.dtype))
    return [best, jnp.where(first, jnp.expand_dims(at, dimension), jnp.zeros((), index_dtype))]


def _extreme(x: Any, selects: str, dimension: int, index_dtype: Any) -> tuple[Any, Any]:
    """First extreme element along a dim, NaN before all numbers, and the position; in one pass."""
    _, beyond, monoid = EXTREMES[selects]

    def better(one: Sequence[Any], other: Sequence[Any]) -> Sequence[Any]:
        (a, i), (b, j) = one, other
        no_a, no_b = a != a, b != b
        wins = beyond(a, b) | (no_a & ~no_b)
        equal = (a == b) | (no_a & no_b)
        return lax.select(wins | equal, a, b), lax.select(wins | (equal & (i < j)), i, j)

    grid = lax.broadcasted_iota(index_dtype, x.shape, dimension)
    start = identity(monoid, x.dtype), identity("min", index_dtype)
    found, at = lax.reduce((x, grid), start, better, (dimension,))
    return found, at


def _best_extreme(best: Any, at: Any, *, selects: str, dimension: int, size: int) -> list[Any]:
    position, _, _ = EXTREMES[selects]
    block = lax.broadcasted_iota(at.dtype, at.shape, dimension)
    chosen = jnp.expand_dims(position(best, dimension, at.dtype), dimension)
    return [jnp.where(block == chosen, at + block * size, 0).sum(dimension, dtype=at.dtype)]


# Largest elements -------------------------------------------------------------------------------


def _block_top_k(x: Any, *, k: int, blocks: int) -> list[Any]:
    """Candidates [..., t, k] of the tile in order, and positions relative to their blocks.

    Of fewer blocks than `blocks`, block i has candidates i k to (i + 1) k of the whole tile. The
    only tile has k candidates and repeats the last one, selected after all before.
    """
    *batch, held, size = x.shape
    tile = lax.reshape(x, (*batch, held * size))
    alone = held == blocks
    # XLA:TPU sorts the whole dim where slices of the candidates are read.
    best, at = map(lax.optimization_barrier, largest(tile, k if alone else k * held))
    if alone:
        edge = [(0, 0)] * len(batch) + [(0, (held - 1) * k)]
        best, at = jnp.pad(best, edge, mode="edge"), jnp.pad(at, edge, mode="edge")
    best, at = best.reshape(*batch, held, k), at.reshape(*batch, held, k)
    return [best, at - size * lax.broadcasted_iota(at.dtype, at.shape, at.ndim - 2)]


def _best_top_k(best: Any, at: Any, *, size: int) -> list[Any]:
    *batch, blocks, k = best.shape
    at = at + size * lax.broadcasted_iota(at.dtype, at.shape, at.ndim - 2)
    found, chosen = largest(best.reshape(*batch, blocks * k), k)
    return [found, jnp.take_along_axis(at.reshape(*batch, blocks * k), chosen, -1)]


block_extremes = _primitive("block_extremes", _block_extremes)
best_extreme = _primitive("best_extreme", _best_extreme)
block_top_k = _primitive("block_top_k", _block_top_k)
best_top_k = _primitive("best_top_k", _best_top_k)


# Rules ------------------------------------------------------------------------------------------


@register("block_extremes", "block_top_k")
def candidates_rule(op: Op) -> OpRule:
    """Tiles all dims but the elements of a block; tiles of blocks have candidates each.

    Operand [..., t, n / t, ...]; results [..., t, ...], of a top_k [..., t, k]. Positions count
    from the tile's first element (of a top_k from the block's).
    """
    shape = shape_of(op, 0)
    within = op.params.get("dimension", len(shape) - 2) + 1
    dims = tuple(range(len(shape)))
    ordered = op.prim == "block_top_k"
    kept = tuple(d for d in dims if d != within)
    return OpRule(
        Kind.ORDER if ordered else Kind.REDUCTION,
        sizes=shape,
        operands=(dims,),
        results=((*kept, NONE) if ordered else kept,) * 2,
        reducers=tuple("sum" if d == within else "" for d in dims),
        blocked=frozenset({within}),
        flops_per_point=4.0 if ordered else 1.0,
        tolerates_padding=False,
    )


@register("best_extreme", "best_top_k")
def best_rule(op: Op) -> OpRule:
    """Tiles all dims but the dims of the candidates.

    Operands: candidates and positions [..., t, ...], of a top_k [..., t, k]; `size`: elements of a
    block. Results: positions, of a top_k elements and positions.
    """
    shape = shape_of(op, 0)
    ordered = op.prim == "best_top_k"
    reduced = op.params.get("dimension", len(shape) - 2)
    whole = {reduced, len(shape) - 1} if ordered else {reduced}
    dims = tuple(NONE if d in whole else d for d in range(len(shape)))
    kept = tuple(d for d in dims if d != NONE)
    return OpRule(
        Kind.ORDER,
        sizes=shape,
        operands=(dims, dims),
        results=((*kept, NONE),) * 2 if ordered else (kept,),
        reducers=tuple("sum" if d in whole else "" for d in range(len(shape))),
        blocked=frozenset(whole),
        flops_per_point=4.0,
        tolerates_padding=False,
    )
