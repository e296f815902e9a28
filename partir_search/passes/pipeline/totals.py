"""Totals of the gradients of layers, over the ticks of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from jax import lax

from partir_search.ir.core import Operand, Value
from partir_search.ir.staged_state import LayerOrder
from partir_search.passes.pipeline.body_values import BodyValues
from partir_search.passes.pipeline.layer_order import layers_of, stages_of
from partir_search.passes.pipeline.loop_parts import Term, Total
from partir_search.passes.pipeline.stage_arrays import masked


def first_total(
    total: Total, x: Any, stages: int, chunks: int, order: LayerOrder | None = None
) -> Any:
    """A total before the first tick, [stages, chunks, layers of a chunk, ...].

    Values of no layer have one total of the whole pipeline, and sums over layers one of each stage.

    Args:
      x: the carry of the loop over microbatches, before the loop.
      order: of the layers in `x`, of a staged state.
    """
    if total.stack is None:
        return x
    if total.summed:
        return jnp.zeros((stages, *x.shape), x.dtype)
    found = stages_of(x, stages, chunks, order)
    return jnp.swapaxes(found, 0, 1)[:, None] if chunks == 1 else found


def last_total(
    total: Total,
    first: Any,
    x: Any,
    chunks: int,
    count: int,
    order: LayerOrder | None = None,
    dtype: Any = None,
) -> Any:
    """The carry of the loop over microbatches after the loop.

    Args:
      first: the carry before the loop.
      count: number of layers.
      order: of the layers in the carry, of a staged state.
      dtype: type of the result; None for that of the carry.
    """
    if total.summed:
        x = first + lax.reduce_sum(x, (0,))
    x = x if dtype is None else x.astype(dtype)
    if total.stack is None or total.summed:
        return x
    return layers_of(jnp.swapaxes(x[:, 0], 0, 1) if chunks == 1 else x, chunks, count, order)


def summands(term: Term, values: BodyValues, valid: Any) -> list[Operand]:
    """Operands computed in a part for a term of a total, for `with_summands`.

    The value added. If some ticks are masked and an op adds rows to zeros, the operands of the op:
    rows to be masked have fewer elements than the result.

    Args:
      valid: False for a tick without a microbatch; None for a phase with one in every tick.
    """
    op = values.rows_added(term.x) if term.adds and valid is not None else None
    return [term.x] if op is None else [x for x in op.operands if isinstance(x, Value)]


def with_summands(
    term: Term, values: BodyValues, valid: Any, old: Any, found: Iterator[Any]
) -> Any:
    """A total after a term of a microbatch, `old` without one.

    Args:
      valid: see `summands`.
      found: arrays of `summands`.
    """
    if not term.adds:
        new = next(found)
        return new if valid is None else jnp.where(valid, new, old)
    op = None if valid is None else values.rows_added(term.x)
    if op is not None:
        known = {x: next(found) for x in op.operands if isinstance(x, Value)}
        rows = values.rows_of(op)
        if isinstance(rows, Value):
            known[rows] = masked(known[rows], valid)
        (new,) = values.compute([term.x], known)
    else:
        new = next(found) if valid is None else masked(next(found), valid)
    return old + new.astype(old.dtype)
