"""`stack_arrays` and `unstack_arrays`: arrays of one shape along a new leading dim, and back.

`passes.stacks` writes the ops around a program computed once for a stack of arrays. The new dim is
not tiled by the ops: tiles of the other dims are stacked, and an all_to_all makes whole arrays of
them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from partir_search.ir.core import Op, TensorType, Value
from partir_search.ir.kind import Kind
from partir_search.ir.role import Role
from partir_search.ir.rule import NONE, OpRule
from partir_search.rules.registry import register, result_shape, shape_of

STACK, UNSTACK = "stack_arrays", "unstack_arrays"
STACK_LAYERS, UNSTACK_LAYERS = "stack_layers", "unstack_layers"  # around a scan over layers


def stacked_type(kind: TensorType, size: int) -> TensorType:
    """Type of a stack of `size` arrays of type `kind`."""
    return dataclasses.replace(kind, shape=(size, *kind.shape))


def stacked(arrays: Sequence[Value], result: Value, near: Op) -> Op:
    """Op that stacks arrays of one type along a new leading dim.

    Args:
      result: the stack; rows beyond the arrays are padding, equal to the first array.
    """
    return _op(STACK, arrays, (result,), near)


def unstacked(stack: Value, results: Sequence[Value], near: Op) -> Op:
    """Op that takes the first arrays of a stack apart."""
    return _op(UNSTACK, (stack,), tuple(results), near)


def stacked_layers(arrays: Sequence[Value], result: Value, near: Op) -> Op:
    """Stack of the arrays of layers, for a scan over the layers."""
    return _op(STACK_LAYERS, arrays, (result,), near)


def unstacked_layers(stack: Value, results: Sequence[Value], near: Op) -> Op:
    """Arrays of layers from a stack made by a scan over the layers."""
    return _op(UNSTACK_LAYERS, (stack,), tuple(results), near)


def _op(prim: str, operands: Sequence[Value], results: tuple[Value, ...], near: Op) -> Op:
    return Op(
        id=-1,
        prim=prim,
        operands=tuple(operands),
        results=results,
        params={},
        origin=near.origin,
        scope=near.scope,
    )


@register(STACK, STACK_LAYERS, role={STACK: Role.STACK, STACK_LAYERS: Role.LAYERS})
def stack_arrays(op: Op) -> OpRule:
    """`[m n], [m n] ... -> [. m n]`: all dims but the new one."""
    part = shape_of(op, 0)
    dims = tuple(range(len(part)))
    return OpRule(
        Kind.MOVEMENT,
        sizes=part,
        operands=(dims,) * len(op.operands),
        results=((NONE, *dims),),
        reducers=("",) * len(part),
        linear=(tuple(range(len(op.operands))),),
        local=_local_stack,
    )


@register(UNSTACK, UNSTACK_LAYERS, role={UNSTACK_LAYERS: Role.ROWS_OF_LAYERS})
def unstack_arrays(op: Op) -> OpRule:
    """`[. m n] -> [m n], [m n] ...`: all dims but the removed one."""
    part = result_shape(op)
    dims = tuple(range(len(part)))
    return OpRule(
        Kind.MOVEMENT,
        sizes=part,
        operands=((NONE, *dims),),
        results=(dims,) * len(op.results),
        reducers=("",) * len(part),
        linear=((0,),),
        elementwise=True,
        local=_local_unstack,
    )


def _local_stack(_: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    size = op.results[0].type.shape[0]
    filled = [*args, *[args[0]] * (size - len(args))]
    return [jnp.concatenate([lax.expand_dims(x, (0,)) for x in filled])]


def _local_unstack(_: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    (stack,) = args
    return [lax.index_in_dim(stack, i, keepdims=False) for i in range(len(op.results))]
