"""Layers with numbers and rows of their own: scans over layers, equal to the layers written out."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partir_search.passes.roll import roll
from partir_search.passes.roll.early_slices import with_early_slices
from tests.support import check_partition, module_of, state_of, tile_arg
from tests.test_roll import only_pair
from tests.written_out import block, deep_args


@pytest.mark.devices
def test_rows_of_keys() -> None:
    """Dropout by a row of keys per layer: the slices stand before the layers."""
    args = deep_args()

    def step(x: Any, *weights: Any) -> Any:
        def loss(weights: Any) -> Any:
            y, keys = x @ weights[0], jax.random.split(jax.random.key(7), 4)
            for i, w in enumerate(weights[1:]):
                key = jax.lax.slice_in_dim(keys, i, i + 1)[0]
                y = block(jnp.where(jax.random.bernoulli(key, 0.8, y.shape), y, 0.0), w)
            return jnp.cos(y).mean()

        grads = jax.grad(loss)(weights)
        return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)]

    module = module_of(step, *args)
    early = with_early_slices(module)
    assert early is not module
    assert with_early_slices(early) is early
    found = roll(module)
    assert only_pair(found).forward.layers == 4
    check_partition(state_of(found.module).partition(), step, args)


@pytest.mark.devices
def test_numbers_of_layers() -> None:
    """Dropout by a key and a rate per layer: bits are equal, numbers and rates are constants."""
    args = deep_args()
    key = jax.random.key(7)

    def step(x: Any, *weights: Any) -> Any:
        def loss(weights: Any) -> Any:
            y = x @ weights[0]
            for i, w in enumerate(weights[1:]):
                rate = 0.1 * (i + 1)
                kept = jax.random.bernoulli(jax.random.fold_in(key, 3 * i + 1), 1 - rate, y.shape)
                y = block(jnp.where(kept, y, 0.0), w) / (1 - rate)
            return jnp.cos(y).mean()

        grads = jax.grad(loss)(weights)
        return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)]

    found = roll(module_of(step, *args))
    pair = only_pair(found)
    assert pair.backward is not None
    assert pair.forward.layers == 4
    scan = found.module.body.ops[pair.forward.position]
    numbers = [
        found.module.constants[x.id].tolist()
        for _, x in scan.inputs()
        if x.id in found.module.constants and x.type.shape == (4,)
    ]
    assert [1, 4, 7, 10] in numbers
    kept = np.array([0.9, 0.8, 0.7, 0.6], "f4").tolist()
    assert any(found == kept for found in numbers)
    state = state_of(found.module)
    tile_arg(state, 0, 0, "batch")
    check_partition(state.partition(), step, args)
