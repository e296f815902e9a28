"""Swin: attention in windows of an image, shifted every second block, and merging of patches."""

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
    side: int = 56,
    patch: int = 48,
    d: int = 192,
    heads: int = 6,
    window: int = 7,
    classes: int = 1000,
) -> Made:
    def block(width: int, heads: int) -> Any:
        return {
            **weights(norm0=(width,), shift0=(width,), norm1=(width,), shift1=(width,)),
            **weights(qkv=(width, 3 * width), out=(width, width)),
            **weights(up=(width, 4 * width), down=(4 * width, width)),
            **weights(bias=((2 * window - 1) ** 2, heads)),
        }

    def init() -> Any:
        return {
            "first": weights(w=(patch, d))["w"],
            "stages": [
                [block(d, heads), block(d, heads)],
                [block(2 * d, 2 * heads), block(2 * d, 2 * heads)],
            ],
            "merge": weights(w=(4 * d, 2 * d))["w"],
            "head": weights(w=(2 * d, classes))["w"],
        }

    at = jnp.arange(window)
    apart = at[:, None] - at[None, :] + window - 1  # [window, window]
    pairs = (apart[:, None, :, None] * (2 * window - 1) + apart[None, :, None, :]).reshape(
        window**2, window**2
    )

    def attend(p: Any, x: Any, heads: int) -> Any:
        """Attention in windows of x [batch, side, side, width]."""
        n, width = x.shape[1] // window, x.shape[-1]
        x = x.reshape(-1, n, window, n, window, width).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(-1, window**2, width)
        qkv = dense(x, p["qkv"]).reshape(-1, window**2, 3, heads, width // heads)
        scores = jnp.einsum("nqhk,nshk->nhqs", qkv[:, :, 0], qkv[:, :, 1])
        bias = p["bias"][pairs].transpose(2, 0, 1)
        scores = scores.astype(jnp.float32) * (width // heads) ** -0.5 + bias
        x = jnp.einsum("nhqs,nshk->nqhk", jax.nn.softmax(scores).astype(BF16), qkv[:, :, 2])
        x = dense(x.reshape(-1, window**2, width), p["out"])
        x = x.reshape(-1, n, n, window, window, width).transpose(0, 1, 3, 2, 4, 5)
        return x.reshape(-1, n * window, n * window, width)

    def layer(p: Any, x: Any, shift: int, heads: int) -> Any:
        y = jnp.roll(layer_norm(x, p["norm0"], p["shift0"]), (-shift, -shift), (1, 2))
        x = x + jnp.roll(attend(p, y, heads), (shift, shift), (1, 2))
        y = jax.nn.gelu(dense(layer_norm(x, p["norm1"], p["shift1"]), p["up"]))
        return x + dense(y, p["down"])

    def loss(params: Any, patches: Any, labels: Any) -> Any:
        x = dense(patches.astype(BF16), params["first"])
        for number, stage in enumerate(params["stages"]):
            if number:
                n = x.shape[1] // 2
                x = x.reshape(-1, n, 2, n, 2, d).transpose(0, 1, 3, 2, 4, 5)
                x = dense(x.reshape(-1, n, n, 4 * d), params["merge"])
            for p, shift in zip(stage, (0, window // 2), strict=True):
                x = layer(p, x, shift, heads * (1 + number))
        return cross_entropy(dense(x.mean(axis=(1, 2)), params["head"]), labels)

    return trained(loss, init, optax.adamw(1e-3), floats(batch, side, side, patch), ids(batch))
