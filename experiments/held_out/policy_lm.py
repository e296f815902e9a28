"""Language model trained by clipped policy gradients, with values and a penalty (RLHF)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import (
    BF16,
    Made,
    dense,
    floats,
    ids,
    rms_norm,
    trained,
    weights,
)


def make(
    batch: int = 16,
    length: int = 1024,
    d: int = 768,
    heads: int = 12,
    layers: int = 2,
    vocabulary: int = 16384,
) -> Made:
    def init() -> Any:
        layer = {"q": (d, d), "kv": (d, 2 * d // 3), "out": (d, d), "n0": (d,), "n1": (d,)}
        layer |= {"gate": (d, 3 * d), "up": (d, 3 * d), "down": (3 * d, d)}
        ends = weights(embed=(vocabulary, d), last=(d,), head=(d, vocabulary), value=(d, 1))
        return {"layers": [weights(**layer) for _ in range(layers)], **ends}

    def attended(p: Any, x: Any) -> Any:
        shared = heads // 3
        q = dense(x, p["q"]).reshape(batch, length, shared, 3, -1)
        k, v = jnp.split(dense(x, p["kv"]).reshape(batch, length, shared, -1), 2, axis=-1)
        scores = jnp.einsum("bqsge,bkse->bsgqk", q, k).astype(jnp.float32) * (d // heads) ** -0.5
        seen = jnp.arange(length)[:, None] >= jnp.arange(length)
        shares = jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1).astype(BF16)
        return dense(jnp.einsum("bsgqk,bkse->bqsge", shares, v).reshape(x.shape), p["out"])

    def loss(params: Any, tokens: Any, old: Any, reference: Any, rewards: Any) -> Any:
        """Loss of tokens [batch, length + 1], with log probabilities [batch, length] of the policy
        that wrote the tokens and of a reference.
        """
        x = params["embed"][tokens[:, :-1]].astype(BF16)
        for p in params["layers"]:
            x = x + attended(p, rms_norm(x, p["n0"]))
            y = rms_norm(x, p["n1"])
            x = x + dense(jax.nn.silu(dense(y, p["gate"])) * dense(y, p["up"]), p["down"])
        x = rms_norm(x, params["last"])
        every = jax.nn.log_softmax(dense(x, params["head"]).astype(jnp.float32))
        told = jnp.take_along_axis(every, tokens[:, 1:, None], axis=-1)[..., 0]
        value = dense(x, params["value"])[..., 0].astype(jnp.float32)
        future = jnp.flip(jnp.cumsum(jnp.flip(rewards, axis=1), axis=1), axis=1)
        gain = jax.lax.stop_gradient(future - value)
        gain = (gain - gain.mean()) * jax.lax.rsqrt(gain.var() + 1e-5)
        ratio = jnp.exp(told - old)
        clipped = jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain).mean()
        apart = reference - told
        penalty = (jnp.exp(apart) - apart - 1.0).mean()
        surprise = -(jnp.exp(every) * every).sum(axis=-1).mean()
        return 0.1 * penalty + 0.5 * jnp.square(value - future).mean() - clipped - 0.01 * surprise

    each = floats(batch, length)
    return trained(loss, init, optax.adamw(1e-5), ids(batch, length + 1), each, each, each)
