"""MLP whose layers keep the k largest of their features (k winners), with a boost of rare ones."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import (
    BF16,
    Made,
    cross_entropy,
    dense,
    floats,
    ids,
    trained,
    weights,
)


def make(
    batch: int = 32768,
    features: int = 1024,
    wide: int = 4096,
    kept: int = 128,
    layers: int = 2,
    classes: int = 1000,
) -> Made:
    def init() -> Any:
        sizes = [features, *[wide] * layers]
        maps = {f"layer{n}": (sizes[n], wide) for n in range(layers)}
        return weights(**maps, boost=(wide,), head=(wide, classes))

    def loss(p: Any, x: Any, labels: Any) -> Any:
        """Loss of x [batch, features] and labels [batch]."""
        x, rows = x.astype(BF16), jnp.arange(batch)[:, None]
        for n in range(layers):
            x = dense(x, p[f"layer{n}"])
            raised = x * jnp.exp(p["boost"]).astype(BF16)
            at = jax.lax.top_k(jax.lax.stop_gradient(raised), kept)[1]
            x = jnp.zeros_like(x).at[rows, at].add(x[rows, at])
        return cross_entropy(dense(x, p["head"]), labels)

    return trained(loss, init, optax.sgd(0.05, momentum=0.9), floats(batch, features), ids(batch))
