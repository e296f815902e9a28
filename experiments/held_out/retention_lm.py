"""Language model of multi-scale retention: decaying masks, rotations, norms by heads, gates."""

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
    d: int = 1024,
    heads: int = 4,
    layers: int = 2,
    vocabulary: int = 16384,
) -> Made:
    def init() -> Any:
        layer = {"q": (d, d), "k": (d, d), "v": (d, 2 * d), "gate": (d, 2 * d), "out": (2 * d, d)}
        layer |= {"up": (d, 2 * d), "side": (d, 2 * d), "down": (2 * d, d)}
        norms = {"n0": (d,), "n1": (d,)}
        ends = weights(embed=(vocabulary, d), last=(d,), head=(d, vocabulary))
        return {"layers": [weights(**layer, **norms) for _ in range(layers)], **ends}

    def rotated(x: Any) -> Any:
        """Turns pairs of numbers of x [batch, length, heads, e] by their position."""
        even, odd = x[..., 0::2], x[..., 1::2]
        rates = 10000.0 ** -jnp.linspace(0.0, 1.0, even.shape[-1])
        angles = (jnp.arange(length)[:, None] * rates)[:, None]
        sine, cosine = jnp.sin(angles).astype(BF16), jnp.cos(angles).astype(BF16)
        turned = even * cosine - odd * sine, odd * cosine + even * sine
        return jnp.stack(turned, axis=-1).reshape(x.shape)

    def retained(p: Any, x: Any) -> Any:
        q, k, v = (dense(x, p[n]).reshape(batch, length, heads, -1) for n in ("q", "k", "v"))
        decay = jnp.log(1.0 - 2.0 ** (-5.0 - jnp.arange(heads)))[:, None, None]
        apart = jnp.arange(length)[:, None] - jnp.arange(length)
        mask = jnp.where(apart >= 0, jnp.exp(decay * jnp.maximum(apart, 0)), 0.0)
        scores = jnp.einsum("bqhe,bkhe->bhqk", rotated(q), rotated(k)) * (d // heads) ** -0.5
        scores = scores.astype(jnp.float32) * mask
        scores = scores / jnp.maximum(jnp.abs(scores).sum(axis=-1, keepdims=True), 1.0)
        y = jnp.einsum("bhqk,bkhe->bqhe", scores.astype(BF16), v).astype(jnp.float32)
        y = y - y.mean(axis=-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.square(y).mean(axis=-1, keepdims=True) + 1e-5)
        y = y.reshape(batch, length, -1).astype(BF16)
        return dense(jax.nn.silu(dense(x, p["gate"])) * y, p["out"])

    def loss(params: Any, tokens: Any, labels: Any) -> Any:
        x = params["embed"][tokens].astype(BF16)
        for p in params["layers"]:
            x = x + retained(p, rms_norm(x, p["n0"]))
            y = rms_norm(x, p["n1"])
            x = x + dense(jax.nn.gelu(dense(y, p["up"])) * dense(y, p["side"]), p["down"])
        return cross_entropy(dense(rms_norm(x, params["last"]), params["head"]), labels)

    return trained(loss, init, optax.adamw(3e-4), ids(batch, length), ids(batch, length))
