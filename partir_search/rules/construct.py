"""Constructors of the ops written by passes, named by the computation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from partir_search.ir.core import Literal, Op, Operand, Region, Shape, TensorType, Value
from partir_search.ir.reducers import number_of

_INT32 = np.dtype(np.int32)
INDEX = TensorType((), _INT32, 4)
FLAG = TensorType((), np.dtype(np.bool_), 1)


@dataclasses.dataclass(frozen=True, slots=True)
class NewOp:
    """An op before its insertion into a program.

    Attributes:
      prim: name of the primitive.
      handle: the primitive; None for one of the package's own.
      type: type of the result.
    """

    prim: str
    handle: Any
    operands: tuple[Operand, ...]
    params: Mapping[str, Any]
    type: TensorType

    def at(self, near: Op, result: Value) -> Op:
        """The op with result `result`, with source, scope and pass of `near`."""
        return Op(
            id=-1,
            prim=self.prim,
            operands=self.operands,
            results=(result,),
            params=self.params,
            origin=near.origin,
            scope=near.scope,
            backward=near.backward,
            handle=self.handle,
        )


def own(prim: str, operands: Sequence[Operand], shape: Shape, **params: Any) -> NewOp:
    """Op of the package's own primitive `prim`, with the first operand's dtype."""
    return NewOp(prim, None, tuple(operands), params, _of(operands[0].type, shape))


def like(op: Op, operands: Sequence[Operand], shape: Shape, **params: Any) -> NewOp:
    """Op of the primitive of `op` with new operands, result shape and parameters."""
    kind = _of(op.results[0].type, shape)
    return NewOp(op.prim, op.handle, tuple(operands), {**op.params, **params}, kind)


def _of(kind: TensorType, shape: Shape) -> TensorType:
    return dataclasses.replace(kind, shape=tuple(shape))


def _jax(primitive: Any, operands: Sequence[Operand], kind: TensorType, **params: Any) -> NewOp:
    return NewOp(primitive.name, primitive, tuple(operands), params, kind)


def zero(kind: TensorType) -> Literal:
    """Zero of a type's dtype."""
    return Literal(number_of(0, kind.dtype), _of(kind, ()))


# Movement ---------------------------------------------------------------------------------------


def sliced(
    x: Operand, starts: Sequence[int], ends: Sequence[int], strides: Sequence[int] | None = None
) -> NewOp:
    """Elements from `starts` to `ends`, exclusive, in steps of `strides` (None for 1)."""
    steps = strides or (1,) * len(starts)
    shape = tuple(-(-(e - s) // n) for s, e, n in zip(starts, ends, steps, strict=True))
    return _jax(
        lax.slice_p,
        (x,),
        _of(x.type, shape),
        start_indices=tuple(starts),
        limit_indices=tuple(ends),
        strides=None if strides is None else tuple(strides),
    )


def padded(x: Operand, filler: Operand, config: Sequence[tuple[int, int, int]]) -> NewOp:
    """Array with elements added per dim: before the first, after the last, and between two.

    Args:
      config: (before, after, between) counts per dim.
    """
    shape = tuple(
        low + high + n + max(n - 1, 0) * inner
        for n, (low, high, inner) in zip(x.type.shape, config, strict=True)
    )
    return _jax(lax.pad_p, (x, filler), _of(x.type, shape), padding_config=tuple(config))


def broadcast(x: Operand, shape: Shape, dims: Sequence[int]) -> NewOp:
    """Array of `shape` with dim i of `x` as dim ``dims[i]``, repeated along all further dims."""
    params = {"shape": tuple(shape), "broadcast_dimensions": tuple(dims), "sharding": None}
    return _jax(lax.broadcast_in_dim_p, (x,), _of(x.type, shape), **params)


def renamed(x: Operand) -> NewOp:
    """Copy of `x`."""
    return broadcast(x, x.type.shape, range(len(x.type.shape)))


def reshaped(x: Operand, shape: Sequence[int]) -> NewOp:
    """Elements of `x` in a new shape of equal size."""
    params = {"new_sizes": tuple(shape), "dimensions": None, "sharding": None}
    return _jax(lax.reshape_p, (x,), _of(x.type, tuple(shape)), **params)


def transposed(x: Operand, order: Sequence[int]) -> NewOp:
    """Dim ``order[i]`` of `x` as dim i."""
    shape = tuple(x.type.shape[d] for d in order)
    return _jax(lax.transpose_p, (x,), _of(x.type, shape), permutation=tuple(order))


def concatenated(xs: Sequence[Operand], dim: int) -> NewOp:
    """Arrays laid end to end along `dim`."""
    shape = list(xs[0].type.shape)
    shape[dim] = sum(x.type.shape[dim] for x in xs)
    return _jax(lax.concatenate_p, xs, _of(xs[0].type, tuple(shape)), dimension=dim)


# Arithmetic -------------------------------------------------------------------------------------


def added(x: Operand, y: Operand) -> NewOp:
    """``x + y``."""
    return combined(lax.add_p, x, y)


def multiplied(x: Operand, y: Operand) -> NewOp:
    """``x * y``."""
    return combined(lax.mul_p, x, y)


def combined(primitive: Any, x: Operand, y: Operand) -> NewOp:
    """Result of an elementwise primitive that keeps the operands' dtype."""
    return _jax(primitive, (x, y), x.type)


def summed(x: Operand, dim: int) -> NewOp:
    """Sum over a dim."""
    shape = (*x.type.shape[:dim], *x.type.shape[dim + 1 :])
    return _jax(lax.reduce_sum_p, (x,), _of(x.type, shape), axes=(dim,), out_sharding=None)


# Positions and choices --------------------------------------------------------------------------


def index_grid(shape: Shape, dim: int) -> NewOp:
    """Position of each element along `dim`, as int32."""
    params = {"dtype": _INT32, "shape": tuple(shape), "dimension": dim, "sharding": None}
    return _jax(lax.iota_p, (), _of(INDEX, shape), **params)


def remainder(x: Operand, n: int) -> NewOp:
    """``x % n`` of int32."""
    return combined(lax.rem_p, x, _index(n))


def less(x: Operand, n: int) -> NewOp:
    """``x < n`` of int32."""
    return _flags(lax.lt_p, x, n)


def at_least(x: Operand, n: int) -> NewOp:
    """``x >= n`` of int32."""
    return _flags(lax.ge_p, x, n)


def equal(x: Operand, n: int) -> NewOp:
    """``x == n`` of int32."""
    return _flags(lax.eq_p, x, n)


def both(x: Operand, y: Operand) -> NewOp:
    """``x & y`` of bools."""
    return combined(lax.and_p, x, y)


def selected(where: Operand, yes: Operand, no: Operand) -> NewOp:
    """`yes` at true elements of `where`, `no` at false ones."""
    return _jax(lax.select_n_p, (where, no, yes), _of(yes.type, where.type.shape))


def _flags(primitive: Any, x: Operand, n: int) -> NewOp:
    return _jax(primitive, (x, _index(n)), _of(FLAG, x.type.shape))


def _index(n: int) -> Literal:
    return Literal(np.int32(n), INDEX)


# Regions ----------------------------------------------------------------------------------------


def rematerialization(
    operands: Sequence[Value], results: Sequence[Value], region: Region, near: Op
) -> Op:
    """Op of the backward pass that recomputes values of the forward pass."""
    return Op(
        id=-1,
        prim="checkpoint",
        operands=tuple(operands),
        results=tuple(results),
        params={"prevent_cse": True, "differentiated": True},
        regions=(region,),
        origin=near.origin,
        scope=near.scope,
        backward=True,
    )


# Arrays -----------------------------------------------------------------------------------------


def weakened(x: jax.Array) -> jax.Array:
    """`x` with a weak type, like a Python scalar's: no promotion of the types of operands."""
    params = {"new_dtype": x.dtype, "weak_type": True, "sharding": None}
    return lax.convert_element_type_p.bind(x, **params)  # type: ignore[no-any-return]
