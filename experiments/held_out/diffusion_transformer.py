"""Diffusion transformer (DiT): norms whose gains, shifts and gates a condition makes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import BF16, Made, dense, floats, ids, trained, weights


def make(
    batch: int = 128,
    patches: int = 256,
    patch: int = 64,
    d: int = 1024,
    heads: int = 16,
    classes: int = 1000,
    layers: int = 2,
) -> Made:
    def init() -> Any:
        block = {"change": (d, 6 * d), "qkv": (d, 3 * d), "out": (d, d)}
        block |= {"up": (d, 4 * d), "down": (4 * d, d)}
        return {
            **weights(first=(patch, d), places=(patches, d), table=(classes, d)),
            **weights(time=(256, d), time_again=(d, d)),
            "blocks": [weights(**block) for _ in range(layers)],
            **weights(last_change=(d, 2 * d), last=(d, patch)),
        }

    def norm(x: Any, gain: Any, shift: Any) -> Any:
        """Norm of x [batch, patches, d] with gain and shift [batch, d]."""
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(axis=-1, keepdims=True)
        scale = jax.lax.rsqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-6)
        return (centred * scale).astype(BF16) * (1 + gain[:, None]) + shift[:, None]

    def attend(p: Any, x: Any) -> Any:
        qkv = dense(x, p["qkv"]).reshape(*x.shape[:-1], 3, heads, -1)
        q, k, v = (qkv[:, :, i] for i in range(3))
        scores = jnp.einsum("bqhk,bshk->bhqs", q, k).astype(jnp.float32) * (d // heads) ** -0.5
        shares = jax.nn.softmax(scores).astype(BF16)
        return dense(jnp.einsum("bhqs,bshk->bqhk", shares, v).reshape(x.shape), p["out"])

    def block(p: Any, x: Any, condition: Any) -> Any:
        changes = dense(jax.nn.silu(condition), p["change"])
        shift0, gain0, gate0, shift1, gain1, gate1 = jnp.split(changes, 6, axis=-1)
        x = x + gate0[:, None] * attend(p, norm(x, gain0, shift0))
        y = jax.nn.gelu(dense(norm(x, gain1, shift1), p["up"]))
        return x + gate1[:, None] * dense(y, p["down"])

    def loss(params: Any, seed: Any, images: Any, times: Any, labels: Any) -> Any:
        noise = jax.random.normal(jax.random.key(seed[0]), images.shape)
        keep = jnp.cos(times * (jnp.pi / 2))[:, None, None]
        spread = jnp.sin(times * (jnp.pi / 2))[:, None, None]
        mixed = (keep * images + spread * noise).astype(BF16)
        angles = times[:, None] * jnp.exp(jnp.linspace(0.0, 8.0, 128))
        waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1).astype(BF16)
        condition = dense(jax.nn.silu(dense(waves, params["time"])), params["time_again"])
        condition = condition + params["table"][labels].astype(BF16)
        x = dense(mixed, params["first"]) + params["places"].astype(BF16)
        for p in params["blocks"]:
            x = block(p, x, condition)
        changes = dense(jax.nn.silu(condition), params["last_change"])
        shift, gain = jnp.split(changes, 2, axis=-1)
        told = dense(norm(x, gain, shift), params["last"]).astype(jnp.float32)
        return ((told - noise) ** 2).mean()

    return trained(
        loss,
        init,
        optax.adamw(1e-4),
        jax.ShapeDtypeStruct((1,), jnp.uint32),
        *(floats(batch, patches, patch), floats(batch), ids(batch)),
    )
