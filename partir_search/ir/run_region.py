"""Interpreter of regions: runs ops one by one on arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from partir_search.ir.core import Literal, Op, Operand, Region, Value
from partir_search.ir.data_flow import Emit
from partir_search.ir.source_names import located

RunOp = Callable[[Op, Sequence[Any]], Sequence[Any]]
OnValue = Callable[[Value, Any], Any]


def run_region(
    region: Region,
    args: Sequence[Any],
    outer: Mapping[Value, Any],
    run_op: RunOp,
    emit_of: Callable[[Op], Emit],
    on_value: OnValue = lambda value, x: x,
) -> list[Any]:
    """Results of a region on `args`.

    Args:
      outer: arrays of constants, visible in nested regions too.
      run_op: runs an op without regions on its operands.
      emit_of: emitter of an op with regions.
      on_value: called on every argument and result of an op, inside of nested regions too; returns
        the array to continue with.
    """
    env = dict(outer)
    env.update((v, on_value(v, a)) for v, a in zip(region.args, args, strict=True))

    def read(x: Operand) -> Any:
        return jnp.asarray(x.value, x.type.dtype) if isinstance(x, Literal) else env[x]

    def outs_of(op: Op, ins: Sequence[Any]) -> Sequence[Any]:
        if not op.regions:
            return run_op(op, ins)
        bodies = [
            lambda *inner, r=r: run_region(r, inner, outer, run_op, emit_of, on_value)
            for r in op.regions
        ]
        return emit_of(op)(op, bodies, ins)

    for op in region.ops:
        ins = [read(x) for x in op.operands]
        with located(op.origin, op.scope):
            outs = outs_of(op, ins)
            env.update((r, on_value(r, o)) for r, o in zip(op.results, outs, strict=True))
    return [read(r) for r in region.results]
