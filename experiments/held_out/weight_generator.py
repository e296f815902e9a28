"""Hypernetwork: a transformer of patches that writes the weights of a network per image."""

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
    batch: int = 256,
    patches: int = 64,
    patch: int = 192,
    d: int = 512,
    heads: int = 8,
    layers: int = 2,
    width: int = 64,
    waves: int = 16,
) -> Made:
    shapes = ((4 * waves, width), (width, width), (width, width))
    points = patches * patch // 3

    def init() -> Any:
        maps = {"qkv": (d, 3 * d), "out": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
        layer = {**maps, **dict.fromkeys(("gain0", "bias0", "gain1", "bias1"), (d,))}
        ends = {"enter": (patch, d), "at": (patches + width, d), "colour": (width, 3)}
        writers = {f"write{n}": (d, a) for n, (a, _) in enumerate(shapes)}
        base = {f"base{n}": shape for n, shape in enumerate(shapes)}
        return {
            "layers": [weights(**layer) for _ in range(layers)],
            **weights(**ends, **writers, **base),
        }

    def block(p: Any, x: Any) -> Any:
        y = layer_norm(x, p["gain0"], p["bias0"])
        q, k, v = jnp.split(dense(y, p["qkv"]).reshape(*x.shape[:2], heads, -1), 3, axis=-1)
        scores = jnp.einsum("bqhe,bkhe->bhqk", q, k).astype(jnp.float32) * (d // heads) ** -0.5
        shares = jax.nn.softmax(scores).astype(BF16)
        x = x + dense(jnp.einsum("bhqk,bkhe->bqhe", shares, v).reshape(x.shape), p["out"])
        y = layer_norm(x, p["gain1"], p["bias1"])
        return x + dense(jax.nn.gelu(dense(y, p["up"])), p["down"])

    def loss(params: Any, images: Any, places: Any) -> Any:
        """Error of colours at places [batch, points, 2] of images [batch, patches, patch]."""
        x = dense(images.astype(BF16), params["enter"])
        x = jnp.concatenate([x, jnp.zeros((batch, width, d), BF16)], axis=1)
        x = x + params["at"].astype(BF16)
        for p in params["layers"]:
            x = block(p, x)
        columns = x[:, patches:]
        turned = places[..., None] * 2.0 ** jnp.arange(waves)
        h = jnp.concatenate([jnp.sin(turned), jnp.cos(turned)], axis=-1)
        h = h.reshape(batch, points, -1).astype(BF16)
        for n in range(len(shapes)):
            written = dense(columns, params[f"write{n}"]).swapaxes(1, 2)  # [batch, a, width]
            own = params[f"base{n}"].astype(BF16) * (1 + written)
            h = jax.nn.relu(jnp.einsum("bpa,bac->bpc", h, own))
        drawn = jax.nn.sigmoid(dense(h, params["colour"]).astype(jnp.float32))
        return jnp.square(drawn - images.reshape(batch, points, 3)).mean()

    return trained(
        loss, init, optax.adamw(1e-4), floats(batch, patches, patch), floats(batch, points, 2)
    )
