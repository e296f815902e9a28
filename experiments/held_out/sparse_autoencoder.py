"""Sparse autoencoder of activations: the k largest of many features, and an auxiliary loss."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import BF16, Made, dense, floats, trained, weights


def make(batch: int = 8192, d: int = 1024, features: int = 16384, chosen: int = 32) -> Made:
    def init() -> Any:
        return weights(encode=(d, features), decode=(features, d), start=(features,), centre=(d,))

    def loss(params: Any, x: Any) -> Any:
        centred = (x - params["centre"]).astype(BF16)
        found = dense(centred, params["encode"]).astype(jnp.float32) + params["start"]
        kept, at = jax.lax.top_k(jax.nn.relu(found), chosen)
        rows = jnp.arange(batch)[:, None]
        sparse = jnp.zeros((batch, features), BF16).at[rows, at].set(kept.astype(BF16))
        wrong = dense(sparse, params["decode"]) + params["centre"] - x
        rest = jax.nn.softplus(jnp.where(sparse > 0, -8.0, found)).astype(BF16)
        explained = dense(rest, params["decode"]).astype(jnp.float32)
        aside = jnp.square(explained + jax.lax.stop_gradient(wrong)).mean()
        return jnp.square(wrong).mean() + aside / 32

    return trained(loss, init, optax.adam(1e-4), floats(batch, d))
