"""Perceiver: learned latents read a long input by cross-attention, then attend to each other."""

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
    inputs: int = 4096,
    channels: int = 256,
    latents: int = 256,
    d: int = 1024,
    heads: int = 8,
    layers: int = 2,
    classes: int = 1000,
) -> Made:
    width = d // heads

    def block(source: int) -> Any:
        return weights(
            norm_q=(d,),
            shift_q=(d,),
            norm_s=(source,),
            shift_s=(source,),
            norm_f=(d,),
            shift_f=(d,),
            q=(d, d),
            k=(source, d),
            v=(source, d),
            out=(d, d),
            up=(d, 4 * d),
            down=(4 * d, d),
        )

    def init() -> Any:
        return {
            "latents": weights(w=(latents, d))["w"],
            "positions": weights(w=(inputs, channels))["w"],
            "cross": block(channels),
            "layers": [block(d) for _ in range(layers)],
            "head": weights(w=(d, classes))["w"],
        }

    def attend(p: Any, x: Any, source: Any) -> Any:
        def split(y: Any) -> Any:
            return y.reshape(*y.shape[:2], heads, width)

        x_norm = layer_norm(x, p["norm_q"], p["shift_q"])
        s_norm = layer_norm(source, p["norm_s"], p["shift_s"])
        q, k, v = (split(dense(y, p[n])) for y, n in ((x_norm, "q"), (s_norm, "k"), (s_norm, "v")))
        scores = jnp.einsum("bqhk,bshk->bhqs", q, k).astype(jnp.float32) * width**-0.5
        mixed = jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(scores).astype(BF16), v)
        x = x + dense(mixed.reshape(x.shape), p["out"])
        h = layer_norm(x, p["norm_f"], p["shift_f"])
        return x + dense(jax.nn.gelu(dense(h, p["up"])), p["down"])

    def loss(params: Any, images: Any, labels: Any) -> Any:
        source = (images + params["positions"]).astype(BF16)
        x = jnp.broadcast_to(params["latents"].astype(BF16), (batch, latents, d))
        x = attend(params["cross"], x, source)
        for p in params["layers"]:
            x = attend(p, x, x)
        return cross_entropy(dense(x.mean(axis=1), params["head"]), labels)

    return trained(loss, init, optax.lion(1e-4), floats(batch, inputs, channels), ids(batch))
