"""Stacks of layers in the order of a staged train state, by stage and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from partir_search.ir.staged_state import LayerOrder
from partir_search.passes.pipeline.stage_arrays import by_layer, by_stage


def staged_by_stage(x: Any, order: LayerOrder) -> Any:
    """Stack [layers, ...] of a staged state by stage, as `by_stage` of the layers' order."""
    moved = _Moved(order, x.shape)
    return x.reshape(moved.split).transpose(moved.dims).reshape(moved.shape)


def staged_by_layer(x: Any, order: LayerOrder) -> Any:
    """Inverse of `staged_by_stage`."""
    places = 2 if order.chunks == 1 else 3
    moved = _Moved(order, (math.prod(x.shape[:places]), *x.shape[places:]))
    back = sorted(range(len(moved.dims)), key=moved.dims.__getitem__)
    shape = [moved.split[d] for d in moved.dims]
    return x.reshape(shape).transpose(back).reshape(moved.stack)


class _Moved:
    """Shapes on the way of a stack [layers, ...] to its form by stage.

    Attributes:
      stack: at first.
      split: with stages, chunks and layers of a chunk as dims of their own.
      dims: permutation of the split dims.
      shape: at last.
    """

    def __init__(self, order: LayerOrder, stack: Sequence[int]) -> None:
        self.stack = tuple(stack)
        count, *shape = stack
        stages, chunks = order.stages, order.chunks
        length = count // (stages * chunks)
        lead = (length,) if chunks == 1 else (chunks, length)
        first = len(lead)
        if order.dim is None:
            self.split = (stages, *lead, *shape)
            stage, leading = 0, range(1, 1 + first)
            inner = [*range(1 + first, len(self.split))]
        else:
            before, size, after = shape[: order.dim], shape[order.dim], shape[order.dim + 1 :]
            self.split = (*lead, stages, *before, stages, size // stages, *after)
            stage, leading = first + 1 + order.dim, range(first)
            rest = range(stage + 2, len(self.split))
            inner = [*range(first + 1, stage), stage + 1, first, *rest]
        self.dims = (*((*leading, stage) if chunks == 1 else (stage, *leading)), *inner)
        places = (length, stages) if chunks == 1 else (stages, chunks, length)
        self.shape = (*places, *shape)


Orders = Mapping[Any, LayerOrder]
"""Orders of stacks of layers, by value; values without an entry are in the layers' order."""


def stages_of(x: Any, stages: int, chunks: int, order: LayerOrder | None) -> Any:
    """`by_stage` of a stack in some order."""
    return by_stage(x, stages, chunks) if order is None else staged_by_stage(x, order)


def layers_of(x: Any, chunks: int, count: int, order: LayerOrder | None) -> Any:
    """Stack of `count` layers in some order, of an array by stage."""
    return by_layer(x, chunks, count) if order is None else staged_by_layer(x, order)


def to_stages(rows: Sequence[Any], order: LayerOrder) -> list[Any]:
    """Arrays of layers, or one of all layers, in the order of a staged state."""
    x = by_stage(_stacked(rows, order), order.stages, order.chunks)
    return _apart(staged_by_layer(x, order), order)


def to_layers(rows: Sequence[Any], order: LayerOrder) -> list[Any]:
    """Inverse of `to_stages`."""
    stack = _stacked(rows, order)
    return _apart(by_layer(staged_by_stage(stack, order), order.chunks, len(stack)), order)


def _stacked(rows: Sequence[Any], order: LayerOrder) -> Any:
    return rows[0] if order.dim is None else jnp.stack(rows)


def _apart(x: Any, order: LayerOrder) -> list[Any]:
    return [x] if order.dim is None else list(x)
