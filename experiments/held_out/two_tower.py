"""Two towers over bags of ids, trained by the softmax of all pairs of a batch (retrieval)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import BF16, Made, dense, floats, ids, trained, weights


def make(
    batch: int = 8192,
    bag: int = 20,
    rows: int = 400_000,
    d: int = 128,
    hidden: int = 1024,
    out: int = 256,
) -> Made:
    def tower() -> Any:
        return weights(
            table=(rows, d), w0=(d, hidden), b0=(hidden,), w1=(hidden, hidden), w2=(hidden, out)
        )

    def init() -> Any:
        return {"user": tower(), "item": tower(), "temperature": jnp.ones(())}

    def embed(p: Any, bags: Any) -> Any:
        """Unit vectors [batch, out] of bags [batch, bag]; the id 0 is empty."""
        kept = (bags > 0)[..., None]
        mean = (p["table"][bags] * kept).sum(axis=1) / jnp.maximum(kept.sum(axis=1), 1)
        h = jax.nn.relu(dense(mean.astype(BF16), p["w0"]) + p["b0"].astype(BF16))
        h = jax.nn.relu(dense(h, p["w1"]))
        h = dense(h, p["w2"]).astype(jnp.float32)
        return h * jax.lax.rsqrt(jnp.sum(h * h, axis=-1, keepdims=True) + 1e-6)

    def loss(params: Any, users: Any, items: Any, log_frequency: Any) -> Any:
        u, v = embed(params["user"], users), embed(params["item"], items)
        scores = (u.astype(BF16) @ v.astype(BF16).T).astype(jnp.float32)
        scores = scores * jnp.exp(params["temperature"]) - log_frequency
        return optax.softmax_cross_entropy_with_integer_labels(scores, jnp.arange(batch)).mean()

    arguments = ids(batch, bag), ids(batch, bag), floats(batch)
    return trained(loss, init, optax.adagrad(1e-2), *arguments)
