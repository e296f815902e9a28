"""Masked autoencoder: an encoder of the visible patches, a narrow decoder of all."""

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
    layer_norm,
    trained,
    weights,
)


def make(
    batch: int = 256,
    patches: int = 196,
    seen: int = 49,
    patch: int = 768,
    d: int = 768,
    narrow: int = 512,
    heads: int = 8,
    layers: int = 2,
) -> Made:
    def init() -> Any:
        def layer(n: int) -> Any:
            maps = {"qkv": (n, 3 * n), "out": (n, n), "up": (n, 4 * n), "down": (4 * n, n)}
            return weights(**maps, **dict.fromkeys(("gain0", "bias0", "gain1", "bias1"), (n,)))

        ends = {
            "enter": (patch, d),
            "at": (patches, d),
            "cross": (d, narrow),
            "hidden": (1, narrow),
        }
        ends |= {"there": (patches, narrow), "leave": (narrow, patch)}
        return {
            "encoder": [layer(d) for _ in range(layers)],
            "decoder": [layer(narrow)],
            **weights(**ends),
        }

    def block(p: Any, x: Any) -> Any:
        y = layer_norm(x, p["gain0"], p["bias0"])
        parts = dense(y, p["qkv"]).reshape(*x.shape[:2], 3, heads, -1)
        q, k, v = (parts[:, :, n] for n in range(3))
        scores = jnp.einsum("bqhe,bkhe->bhqk", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
        shares = jax.nn.softmax(scores, axis=-1).astype(BF16)
        x = x + dense(jnp.einsum("bhqk,bkhe->bqhe", shares, v).reshape(x.shape), p["out"])
        y = layer_norm(x, p["gain1"], p["bias1"])
        return x + dense(jax.nn.gelu(dense(y, p["up"])), p["down"])

    def loss(params: Any, images: Any, order: Any) -> Any:
        """Error of the hidden patches of images [batch, patches, patch]; order [batch, patches]."""
        x = dense(images.astype(BF16), params["enter"]) + params["at"].astype(BF16)
        x = jnp.take_along_axis(x, order[:, :seen, None], axis=1)
        for p in params["encoder"]:
            x = block(p, x)
        x = dense(x, params["cross"])
        rest = jnp.broadcast_to(params["hidden"].astype(BF16), (batch, patches - seen, narrow))
        back = jnp.argsort(order, axis=1)
        x = jnp.take_along_axis(jnp.concatenate([x, rest], axis=1), back[..., None], axis=1)
        x = x + params["there"].astype(BF16)
        for p in params["decoder"]:
            x = block(p, x)
        wrong = jnp.square(dense(x, params["leave"]).astype(jnp.float32) - images).mean(axis=-1)
        hidden = (back >= seen).astype(jnp.float32)
        return (wrong * hidden).sum() / hidden.sum()

    return trained(
        loss, init, optax.adamw(1e-4), floats(batch, patches, patch), ids(batch, patches)
    )
