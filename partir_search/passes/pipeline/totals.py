"""Totals of the gradients of layers, over the ticks of a pipeline."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from partir_search.ir.staged_state import LayerOrder
from partir_search.passes.pipeline.layer_order import layers_of, stages_of
from partir_search.passes.pipeline.loop_parts import Total
from partir_search.passes.pipeline.stage_arrays import chunk_added


def first_total(
    total: Total, x: Any, stages: int, chunks: int, order: LayerOrder | None = None
) -> Any:
    """A total before the first tick, by stage; of the whole pipeline for values of no layer.

    Args:
      x: the carry of the loop over microbatches, before the loop.
      order: of the layers in `x`, of a staged state.
    """
    if total.stack is None:
        return x
    if total.summed:
        return jnp.zeros((stages, *x.shape), x.dtype)
    return stages_of(x, stages, chunks, order)


def with_gradients(total: Total, old: Any, gradients: Any, at: Any) -> Any:
    """A total of layers with the gradients [layers of a chunk, stages, ...] of a tick.

    Args:
      at: number of the chunk by stage; None for one chunk.
    """
    if total.summed:
        return old + lax.reduce_sum(gradients.astype(old.dtype), (0,))
    return chunk_added(old, gradients, at)


def last_total(
    total: Total, first: Any, x: Any, chunks: int, count: int, order: LayerOrder | None = None
) -> Any:
    """The carry of the loop over microbatches after the loop.

    Args:
      first: the carry before the loop.
      count: number of layers.
      order: of the layers in the carry, of a staged state.
    """
    if total.stack is None:
        return x
    if total.summed:
        return first + lax.reduce_sum(x, (0,))
    return layers_of(x, chunks, count, order)
