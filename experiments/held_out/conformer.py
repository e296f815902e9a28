"""Conformer: feed-forward halves, attention, and a gated depthwise convolution over time."""

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
    frames: int = 512,
    d: int = 512,
    heads: int = 8,
    blocks: int = 2,
    kernel: int = 31,
    classes: int = 4096,
) -> Made:
    width = d // heads

    def init() -> Any:
        block = {
            **{f"norm{i}": (d,) for i in range(5)},
            **{f"shift{i}": (d,) for i in range(5)},
            **{f"up{i}": (d, 4 * d) for i in range(2)},
            **{f"down{i}": (4 * d, d) for i in range(2)},
            "qkv": (d, 3 * d),
            "out": (d, d),
            "glu": (d, 2 * d),
            "depthwise": (kernel, 1, d),
            "point": (d, d),
        }
        return {
            "first": weights(w=(80, d))["w"],
            "blocks": [weights(**block) for _ in range(blocks)],
            "head": weights(w=(d, classes))["w"],
        }

    def attend(p: Any, x: Any) -> Any:
        qkv = dense(x, p["qkv"]).reshape(*x.shape[:2], 3, heads, width)
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        scores = jnp.einsum("bqhk,bshk->bhqs", q, k).astype(jnp.float32) * width**-0.5
        mixed = jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(scores).astype(BF16), v)
        return dense(mixed.reshape(x.shape), p["out"])

    def convolve(p: Any, x: Any) -> Any:
        x = jax.nn.glu(dense(x, p["glu"]))
        x = jax.lax.conv_general_dilated(
            x,
            p["depthwise"].astype(BF16),
            (1,),
            "SAME",
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=d,
        )
        return dense(jax.nn.swish(layer_norm(x, p["norm4"], p["shift4"])), p["point"])

    def loss(params: Any, sounds: Any, labels: Any) -> Any:
        x = dense(sounds.astype(BF16), params["first"])
        for p in params["blocks"]:

            def norm(i: int, x: Any, p: Any = p) -> Any:
                return layer_norm(x, p[f"norm{i}"], p[f"shift{i}"])

            def feed(i: int, x: Any, p: Any = p) -> Any:
                return dense(jax.nn.swish(dense(x, p[f"up{i}"])), p[f"down{i}"])

            x = x + 0.5 * feed(0, norm(0, x))
            x = x + attend(p, norm(1, x))
            x = x + convolve(p, norm(2, x))
            x = x + 0.5 * feed(1, norm(3, x))
        return cross_entropy(dense(x, params["head"]), labels)

    batches = floats(batch, frames, 80), ids(batch, frames)
    return trained(loss, init, optax.adamw(1e-3), *batches)
