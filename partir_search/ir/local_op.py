"""Execution of one op on one tile, shared by the interpreter and the emitted program."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from partir_search.ir.bind import bind
from partir_search.ir.core import Op, Shape
from partir_search.ir.local_context import LocalContext
from partir_search.ir.rule import OpRule

WIDE = np.dtype(np.float32)


def local_result_shapes(ctx: LocalContext, rule: OpRule, op: Op) -> list[Shape]:
    """Shapes of the op's results on one tile."""
    return [
        tuple(
            n // math.prod(ctx.tiles(f) for f in rule.factors_on(dims, d))
            for d, n in enumerate(r.type.shape)
        )
        for r, dims in zip(op.results, rule.results, strict=True)
    ]


def run_local(ctx: LocalContext, rule: OpRule, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """Results of the op on one tile, from operands sliced for the tile."""
    if rule.local is not None:
        return rule.local(ctx, op, args)
    params = op.params
    if rule.localize is not None:
        shapes = [getattr(a, "shape", ()) for a in args]
        params = rule.localize(params, shapes, local_result_shapes(ctx, rule, op))
    return bind(op, params, args)


def widened(op: Op) -> Op:
    """The product with 32-bit floating-point partial results, if its own type is narrower."""
    wanted = op.params.get("preferred_element_type") or op.results[0].type.dtype
    if not jnp.issubdtype(wanted, jnp.floating) or jnp.finfo(wanted).bits >= 32:
        return op
    return dataclasses.replace(op, params={**op.params, "preferred_element_type": WIDE})
