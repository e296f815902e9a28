"""Totals of the gradients of layers, over the ticks of a pipeline."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from partir_search.passes.pipeline.loop_parts import Total
from partir_search.passes.pipeline.stage_arrays import by_layer, by_stage, chunk_added


def first_total(total: Total, x: Any, stages: int, chunks: int) -> Any:
    """A total before the first tick, by stage; of the whole pipeline for values of no layer.

    Args:
      x: the carry of the loop over microbatches, before the loop.
    """
    if total.stack is None:
        return x
    if total.summed:
        return jnp.zeros((stages, *x.shape), x.dtype)
    return by_stage(x, stages, chunks)


def with_gradients(total: Total, old: Any, gradients: Any, at: Any) -> Any:
    """A total of layers with the gradients [layers of a chunk, stages, ...] of a tick.

    Args:
      at: number of the chunk by stage; None for one chunk.
    """
    if total.summed:
        return old + lax.reduce_sum(gradients.astype(old.dtype), (0,))
    return chunk_added(old, gradients, at)


def last_total(total: Total, first: Any, x: Any, chunks: int, count: int) -> Any:
    """The carry of the loop over microbatches after the loop.

    Args:
      first: the carry before the loop.
      count: number of layers.
    """
    if total.stack is None:
        return x
    if total.summed:
        return first + lax.reduce_sum(x, (0,))
    return by_layer(x, chunks, count)
