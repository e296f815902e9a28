"""Runs a region op by op on arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from partir_search.ir.core import Literal, Op, Operand, Region, Value

Block = Callable[..., list[Any]]
RunOp = Callable[[Op, Sequence[Any], Sequence[Block]], Sequence[Any]]
Seen = Callable[[Value, Any], Any]


def run_region(
    region: Region,
    args: Sequence[Any],
    outer: Mapping[Value, Any],
    run_op: RunOp,
    seen: Seen = lambda value, x: x,
) -> list[Any]:
    """The results of a region on `args`.

    Args:
      outer: arrays of the values that the region, and regions inside of it, read beside their
        arguments.
      run_op: results of an op, given the op, its operands and a function for each of its regions.
      seen: called on every argument and result of an op, inside of nested regions too; returns the
        array to go on with.
    """
    env = dict(outer)
    env.update((v, seen(v, a)) for v, a in zip(region.args, args, strict=True))

    def read(x: Operand) -> Any:
        return jnp.asarray(x.value, x.type.dtype) if isinstance(x, Literal) else env[x]

    for op in region.ops:
        blocks = [lambda *inner, r=r: run_region(r, inner, outer, run_op, seen) for r in op.regions]
        outs = run_op(op, [read(x) for x in op.operands], blocks)
        env.update((r, seen(r, o)) for r, o in zip(op.results, outs, strict=True))
    return [read(r) for r in region.results]
