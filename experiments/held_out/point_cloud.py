"""Dynamic graph network of points: top-k neighbours, features of edges, maxima over neighbours."""

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
    batch: int = 64,
    points: int = 1024,
    neighbours: int = 16,
    widths: tuple[int, ...] = (64, 128, 256),
    d: int = 1024,
    classes: int = 50,
) -> Made:
    def init() -> Any:
        ins = (3, *widths[:-1])
        return {
            "edges": [
                weights(w=(2 * a, b), gain=(b,), bias=(b,))
                for a, b in zip(ins, widths, strict=True)
            ],
            **weights(mix=(sum(widths), d), hidden=(d + sum(widths), 512), out=(512, classes)),
        }

    def nearest(x: Any) -> Any:
        """Neighbours [batch, points, neighbours] of points x [batch, points, d]."""
        x = jax.lax.stop_gradient(x.astype(jnp.float32))
        square = (x * x).sum(axis=-1)
        near = 2 * jnp.einsum("bpd,bqd->bpq", x, x) - square[:, None] - square[..., None]
        return jax.lax.top_k(near, neighbours)[1]

    def edge(p: Any, x: Any) -> Any:
        """Maxima over the edges of each point: [batch, points, a] to [batch, points, b]."""
        there = jax.vmap(lambda rows, at: rows[at])(x, nearest(x))  # [batch, points, k, a]
        here = jnp.broadcast_to(x[:, :, None], there.shape)
        y = dense(jnp.concatenate([here, there - here], axis=-1), p["w"]).astype(jnp.float32)
        mean, variance = y.mean(axis=(0, 1, 2)), y.var(axis=(0, 1, 2))
        y = (y - mean) * jax.lax.rsqrt(variance + 1e-5) * (1.0 + p["gain"]) + p["bias"]
        return jax.nn.leaky_relu(y, 0.2).astype(BF16).max(axis=2)

    def loss(params: Any, clouds: Any, labels: Any) -> Any:
        x, found = clouds.astype(BF16), []
        for p in params["edges"]:
            x = edge(p, x)
            found.append(x)
        local = jnp.concatenate(found, axis=-1)
        whole = jax.nn.leaky_relu(dense(local, params["mix"]), 0.2).max(axis=1, keepdims=True)
        whole = jnp.broadcast_to(whole, (*local.shape[:2], d))
        h = jax.nn.relu(dense(jnp.concatenate([whole, local], axis=-1), params["hidden"]))
        return cross_entropy(dense(h, params["out"]), labels)

    return trained(loss, init, optax.adam(1e-3), floats(batch, points, 3), ids(batch, points))
