"""RETRO: a language model whose chunks attend to the encoded neighbours of each chunk."""

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
    rms_norm,
    trained,
    weights,
)


def make(
    batch: int = 16,
    length: int = 1024,
    chunk: int = 64,
    neighbours: int = 2,
    d: int = 1024,
    heads: int = 8,
    layers: int = 2,
    vocab: int = 32_000,
) -> Made:
    width, retrieved = d // heads, 2 * chunk

    def block() -> Any:
        attention = {"norm": (d,), "q": (d, d), "kv": (d, 2 * d), "out": (d, d)}
        return {
            "own": weights(**attention),
            "cross": weights(**attention),
            **weights(norm=(d,), up=(d, 4 * d), down=(4 * d, d)),
        }

    def init() -> Any:
        return {
            "table": weights(w=(vocab, d))["w"],
            "coder": [block()],
            "layers": [block() for _ in range(layers)],
            "final": weights(gain=(d,))["gain"],
        }

    def attend(p: Any, x: Any, source: Any, mask: Any = None) -> Any:
        """Attention of x [n, q, d] to source [n, s, d]."""
        q = dense(x, p["q"]).reshape(*x.shape[:2], heads, width)
        k, v = jnp.split(dense(source, p["kv"]), 2, axis=-1)
        k, v = (y.reshape(*source.shape[:2], heads, width) for y in (k, v))
        scores = jnp.einsum("nqhk,nshk->nhqs", q, k).astype(jnp.float32) * width**-0.5
        if mask is not None:
            scores = jnp.where(mask, scores, -1e30)
        mixed = jnp.einsum("nhqs,nshk->nqhk", jax.nn.softmax(scores).astype(BF16), v)
        return dense(mixed.reshape(x.shape), p["out"])

    def feed(p: Any, x: Any) -> Any:
        return x + dense(jax.nn.gelu(dense(rms_norm(x, p["norm"]), p["up"])), p["down"])

    def encode(blocks: Any, x: Any) -> Any:
        for p in blocks:
            y = rms_norm(x, p["own"]["norm"])
            x = feed(p, x + attend(p["own"], y, y))
        return x

    def loss(params: Any, tokens: Any, found: Any, labels: Any) -> Any:
        table, causal = params["table"].astype(BF16), jnp.tril(jnp.ones((length, length), bool))
        known = encode(params["coder"], table[found.reshape(-1, retrieved)])
        known = known.reshape(-1, neighbours * retrieved, d)  # [batch * chunks, ...]
        x = table[tokens]
        for p in params["layers"]:
            y = rms_norm(x, p["own"]["norm"])
            x = x + attend(p["own"], y, y, causal)
            y = rms_norm(x, p["cross"]["norm"])[:, chunk - 1 :]
            y = jnp.pad(y, ((0, 0), (0, chunk - 1), (0, 0))).reshape(-1, chunk, d)
            y = attend(p["cross"], y, known).reshape(batch, length, d)
            x = x + jnp.pad(y, ((0, 0), (chunk - 1, 0), (0, 0)))[:, :length]
            x = feed(p, x)
        x = rms_norm(x, params["final"])
        return cross_entropy(x @ table.T, labels)

    chunks = length // chunk
    found = ids(batch, chunks, neighbours, retrieved)
    return trained(loss, init, optax.adamw(1e-3), ids(batch, length), found, ids(batch, length))
