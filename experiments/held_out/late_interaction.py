"""Retrieval by late interaction: each word of a query takes its best word of every document."""

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
    ids,
    layer_norm,
    trained,
    weights,
)


def make(
    batch: int = 64,
    asked: int = 32,
    length: int = 180,
    d: int = 512,
    heads: int = 8,
    layers: int = 3,
    small: int = 96,
    vocabulary: int = 30_000,
) -> Made:
    def init() -> Any:
        layer = {"q": (d, d), "k": (d, d), "v": (d, d), "out": (d, d)}
        layer |= {"up": (d, 4 * d), "down": (4 * d, d)}
        norms = {"gain0": (d,), "bias0": (d,), "gain1": (d,), "bias1": (d,)}
        ends = {"words": (vocabulary, d), "places": (length, d), "small": (d, small)}
        return {"layers": [weights(**layer, **norms) for _ in range(layers)], **weights(**ends)}

    def attended(p: Any, x: Any, seen: Any) -> Any:
        """Self-attention of x [batch, n, d] over the words that are `seen` [batch, n]."""
        q, k, v = (dense(x, p[name]).reshape(*x.shape[:2], heads, -1) for name in "qkv")
        scores = jnp.einsum("bqhe,bkhe->bhqk", q, k).astype(jnp.float32) * (d // heads) ** -0.5
        shares = jax.nn.softmax(jnp.where(seen[:, None, None], scores, -1e9)).astype(BF16)
        return dense(jnp.einsum("bhqk,bkhe->bqhe", shares, v).reshape(x.shape), p["out"])

    def encoded(params: Any, words: Any) -> Any:
        """Unit vectors [batch, n, small] of words [batch, n]; those of padding (0) are zero."""
        seen = words > 0
        x = (params["words"][words] + params["places"][: words.shape[1]]).astype(BF16)
        for p in params["layers"]:
            x = layer_norm(x + attended(p, x, seen), p["gain0"], p["bias0"])
            inner = jax.nn.gelu(dense(x, p["up"]))
            x = layer_norm(x + dense(inner, p["down"]), p["gain1"], p["bias1"])
        found = dense(x, params["small"]).astype(jnp.float32)
        size = jax.lax.rsqrt(jnp.square(found).sum(axis=-1, keepdims=True) + 1e-6)
        return (found * size * seen[..., None]).astype(BF16)

    def loss(params: Any, queries: Any, documents: Any) -> Any:
        alike = jnp.einsum("aqe,bne->abqn", encoded(params, queries), encoded(params, documents))
        scores = alike.max(axis=-1).astype(jnp.float32).sum(axis=-1)  # [queries, documents]
        return cross_entropy(scores * 4.0, jnp.arange(batch))

    return trained(loss, init, optax.adamw(1e-4), ids(batch, asked), ids(batch, length))
