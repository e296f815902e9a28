"""Language model of the Gemma-2 kind: soft caps, grouped heads, local and global layers."""

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
    length: int = 2048,
    d: int = 1152,
    heads: int = 8,
    shared: int = 4,
    width: int = 256,
    ff: int = 4608,
    window: int = 512,
    layers: int = 2,
    vocab: int = 32_768,
) -> Made:
    groups = heads // shared

    def init() -> Any:
        layer = {
            **dict.fromkeys(("before", "after", "before_f", "after_f"), (d,)),
            "q": (d, heads * width),
            "kv": (d, 2 * shared * width),
            "out": (heads * width, d),
            "gate": (d, ff),
            "up": (d, ff),
            "down": (ff, d),
        }
        return {
            "table": weights(w=(vocab, d))["w"],
            "layers": [weights(**layer) for _ in range(layers)],
            "gain": jnp.zeros(d),
        }

    def rotate(x: Any) -> Any:
        """Rotary positions of x [batch, length, ..., width]."""
        rate = 1e4 ** (-jnp.arange(width // 2) / (width // 2))
        angle = jnp.arange(length)[:, None] * rate
        angle = angle.reshape(length, *[1] * (x.ndim - 3), width // 2)
        a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        return jnp.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1).astype(BF16)

    def attend(p: Any, x: Any, local: bool) -> Any:
        q = rotate(dense(x, p["q"]).reshape(batch, length, shared, groups, width))
        k, v = jnp.split(dense(x, p["kv"]).reshape(batch, length, shared, 2 * width), 2, axis=-1)
        scores = jnp.einsum("bqngk,bsnk->bngqs", q, rotate(k)).astype(jnp.float32) * width**-0.5
        scores = 50.0 * jnp.tanh(scores / 50.0)
        to, start = jnp.arange(length)[:, None], jnp.arange(length)
        seen = (start <= to) & (to - start < window) if local else start <= to
        odds = jax.nn.softmax(jnp.where(seen, scores, -2e38)).astype(BF16)
        mixed = jnp.einsum("bngqs,bsnk->bqngk", odds, v)
        return dense(mixed.reshape(batch, length, heads * width), p["out"])

    def loss(params: Any, tokens: Any, labels: Any) -> Any:
        x = params["table"][tokens].astype(BF16) * d**0.5
        for i, p in enumerate(params["layers"]):
            mixed = attend(p, rms_norm(x, p["before"]), local=i % 2 == 0)
            x = x + rms_norm(mixed, p["after"])
            h = rms_norm(x, p["before_f"])
            h = dense(jax.nn.gelu(dense(h, p["gate"])) * dense(h, p["up"]), p["down"])
            x = x + rms_norm(h, p["after_f"])
        logits = dense(rms_norm(x, params["gain"]), params["table"].T).astype(jnp.float32)
        return cross_entropy(30.0 * jnp.tanh(logits / 30.0), labels)

    return trained(loss, init, optax.adamw(1e-3), ids(batch, length), ids(batch, length))
