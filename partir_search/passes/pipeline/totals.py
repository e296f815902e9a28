"""Totals of the gradients of layers, over the ticks of a pipeline."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from partir_search.ir.staged_state import LayerOrder
from partir_search.passes.pipeline.layer_order import layers_of, stages_of
from partir_search.passes.pipeline.loop_parts import Total


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
    return layers_of(jnp.swapaxes(x[:, 0], 0, 1) if chunks == 1 else x, chunks, count, order)
