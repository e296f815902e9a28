"""Diffusion by a U-shaped ViT: long skips, concatenated and projected."""

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
    layer_norm,
    trained,
    weights,
)


def make(
    batch: int = 128,
    patches: int = 256,
    patch: int = 16,
    d: int = 512,
    heads: int = 8,
    half: int = 2,
) -> Made:
    def init() -> Any:
        maps = {"qkv": (d, 3 * d), "out": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
        layer = {**maps, **dict.fromkeys(("gain0", "bias0", "gain1", "bias1"), (d,))}
        skipped = {**layer, "skip": (2 * d, d)}
        ends = {"enter": (patch, d), "at": (patches + 1, d), "leave": (d, patch), "time": (d, d)}
        return {
            "down": [weights(**layer) for _ in range(half)],
            "middle": weights(**layer),
            "up": [weights(**skipped) for _ in range(half)],
            **weights(**ends),
        }

    def block(p: Any, x: Any, skip: Any = None) -> Any:
        if skip is not None:
            x = dense(jnp.concatenate([x, skip], axis=-1), p["skip"])
        y = layer_norm(x, p["gain0"], p["bias0"])
        q, k, v = jnp.split(dense(y, p["qkv"]), 3, axis=-1)
        q, k, v = (z.reshape(batch, patches + 1, heads, -1) for z in (q, k, v))
        scores = jnp.einsum("bqhe,bkhe->bhqk", q, k) * (d // heads) ** -0.5
        shares = jax.nn.softmax(scores, axis=-1)
        x = x + dense(jnp.einsum("bhqk,bkhe->bqhe", shares, v).reshape(x.shape), p["out"])
        y = layer_norm(x, p["gain1"], p["bias1"])
        return x + dense(jax.nn.gelu(dense(y, p["up"])), p["down"])

    def loss(params: Any, images: Any, noise: Any, times: Any) -> Any:
        level = times[:, None, None]
        noised = jnp.sqrt(1 - level) * images + jnp.sqrt(level) * noise
        waves = times[:, None] * jnp.exp(-jnp.linspace(0.0, 8.0, d // 2))
        time = jnp.concatenate([jnp.sin(waves), jnp.cos(waves)], axis=-1).astype(BF16)
        time = dense(time, params["time"])[:, None]
        x = jnp.concatenate([time, dense(noised.astype(BF16), params["enter"])], axis=1)
        x, kept = x + params["at"].astype(BF16), []
        for p in params["down"]:
            x = block(p, x)
            kept.append(x)
        x = block(params["middle"], x)
        for p in params["up"]:
            x = block(p, x, kept.pop())
        told = dense(x[:, 1:], params["leave"]).astype(jnp.float32)
        return jnp.square(told - noise).mean()

    fields = floats(batch, patches, patch)
    return trained(loss, init, optax.adamw(2e-4), fields, fields, floats(batch))
