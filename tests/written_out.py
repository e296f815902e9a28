"""A step of gradient descent with four layers written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tests.support import floats_of


def block(y: Any, w: Any) -> Any:
    return y + 0.1 * jnp.sin(y @ w) @ w.T


def deep(x: Any, table: Any, *weights: Any, layer: Callable[..., Any] = block) -> Any:
    """Parameters after one step of gradient descent."""

    def loss(table: Any, weights: Any) -> Any:
        y = x @ table
        for w in weights:
            y = layer(y, w)
        return jnp.cos(y).mean()

    grads = jax.tree.leaves(jax.grad(loss, (0, 1))(table, weights))
    return [w - 0.1 * g for w, g in zip((table, *weights), grads, strict=True)]


def deep_args() -> list[jax.Array]:
    return floats_of((8, 16), (16, 16), *((16, 32),) * 4)
