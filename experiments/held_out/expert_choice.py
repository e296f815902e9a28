"""Vision transformer in which each expert chooses the patches that it reads."""

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
    layer_norm,
    trained,
    weights,
)


def make(
    batch: int = 64,
    pixels: int = 128,
    patch: int = 8,
    d: int = 512,
    heads: int = 8,
    experts: int = 8,
    chosen: int = 64,
    layers: int = 2,
    classes: int = 100,
) -> Made:
    tokens = (pixels // patch) ** 2

    def init() -> Any:
        layer = {"qkv": (d, 3 * d), "out": (d, d), "route": (d, experts)}
        norms = {"gain0": (d,), "bias0": (d,), "gain1": (d,), "bias1": (d,)}

        def block() -> Any:
            up, down = weights(w=(d, experts, 4 * d))["w"], weights(w=(4 * d, experts, d))["w"]
            own = {"up": up.swapaxes(0, 1), "down": down.swapaxes(0, 1)}
            return {**weights(**layer, **norms), **own}

        ends = weights(patches=(patch * patch * 3, d), places=(tokens, d), head=(d, classes))
        return {"layers": [block() for _ in range(layers)], **ends}

    def attended(p: Any, x: Any) -> Any:
        q, k, v = jnp.split(dense(x, p["qkv"]).reshape(batch, tokens, heads, -1), 3, axis=-1)
        scores = jnp.einsum("bqhe,bkhe->bhqk", q, k) * (d // heads) ** -0.5
        shares = jax.nn.softmax(scores.astype(jnp.float32)).astype(BF16)
        return dense(jnp.einsum("bhqk,bkhe->bqhe", shares, v).reshape(x.shape), p["out"])

    def routed(p: Any, x: Any) -> Any:
        """Sums over experts of their outputs for the tokens that they chose, by weight."""
        shares = jax.nn.softmax(dense(x, p["route"]).astype(jnp.float32))
        weight, at = jax.lax.top_k(shares.swapaxes(1, 2), chosen)  # [batch, experts, chosen]
        read = jnp.take_along_axis(x[:, None], at[..., None], axis=2)
        y = jnp.einsum("bend,edf->benf", read, p["up"].astype(BF16))
        y = jnp.einsum("benf,efd->bend", jax.nn.gelu(y), p["down"].astype(BF16))
        y = y * weight[..., None].astype(BF16)
        rows = jnp.arange(batch)[:, None, None]
        return jnp.zeros_like(x).at[rows, at].add(y)

    def loss(params: Any, images: Any, labels: Any) -> Any:
        n = pixels // patch
        cut = images.astype(BF16).reshape(batch, n, patch, n, patch, 3).transpose(0, 1, 3, 2, 4, 5)
        x = dense(cut.reshape(batch, tokens, -1), params["patches"]) + params["places"].astype(BF16)
        for p in params["layers"]:
            x = x + attended(p, layer_norm(x, p["gain0"], p["bias0"]))
            x = x + routed(p, layer_norm(x, p["gain1"], p["bias1"]))
        return cross_entropy(dense(x.mean(axis=1), params["head"]), labels)

    images = floats(batch, pixels, pixels, 3)
    return trained(loss, init, optax.adamw(1e-3), images, ids(batch))
