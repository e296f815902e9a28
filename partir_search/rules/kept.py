"""`stored_value`: a value computed again beside an equal stored value, which is the result.

`passes.roll` writes the op on rows of attention that wait for the backward pass. Recognition of
attention needs the ops of the forward pass behind a row; `passes.kept_values` drops the ops after
recognition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from partir_search.ir.core import Op, Value
from partir_search.ir.kind import Kind
from partir_search.ir.role import Role
from partir_search.ir.rule import OpRule
from partir_search.rules.registry import register, result_shape

KEPT = "stored_value"
kept = Primitive(KEPT)


def kept_value(again: Value, stored: Value, result: Value, near: Op) -> Op:
    """Op that returns `stored`, equal to `again`, with source, scope and pass of the op `near`."""
    return Op(
        id=-1,
        prim=KEPT,
        operands=(again, stored),
        results=(result,),
        params={},
        origin=near.origin,
        scope=near.scope,
        backward=near.backward,
        handle=kept,
    )


def _run(_: Any, stored: Any) -> Any:
    return stored


def _batch(args: Sequence[Any], dims: Sequence[Any]) -> Any:
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    moved = (
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(args, dims, strict=True)
    )
    return kept.bind(*moved), 0


kept.def_impl(_run)
kept.def_abstract_eval(_run)
mlir.register_lowering(kept, mlir.lower_fun(_run, multiple_results=False))
batching.primitive_batchers[kept] = _batch


@register(KEPT, role=Role.KEPT)
def _kept(op: Op) -> OpRule:
    """One factor for each dim."""
    shape = result_shape(op)
    dims = tuple(range(len(shape)))
    return OpRule(
        Kind.ELEMENTWISE,
        sizes=shape,
        operands=(dims, dims),
        results=(dims,),
        reducers=("",) * len(shape),
    )
