"""Contrastive audio: convolutions of waves, masked frames told from distractors (wav2vec)."""

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
    batch: int = 32,
    length: int = 32768,
    width: int = 256,
    d: int = 512,
    heads: int = 8,
    layers: int = 2,
    distractors: int = 32,
    strides: tuple[int, ...] = (8, 4, 2),
) -> Made:
    frames = length
    for stride in strides:
        frames //= stride

    def init() -> Any:
        sizes = [1, *[width] * len(strides)]
        kernels = {
            f"conv{n}": (2 * s, a, b)
            for n, (s, a, b) in enumerate(zip(strides, sizes, sizes[1:], strict=False))
        }
        maps = {"qkv": (d, 3 * d), "out": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
        layer = {**maps, **dict.fromkeys(("gain0", "bias0", "gain1", "bias1"), (d,))}
        ends = {"enter": (width, d), "target": (width, d), "mask": (1, d), "told": (d, d)}
        return {"layers": [weights(**layer) for _ in range(layers)], **weights(**kernels, **ends)}

    def block(p: Any, x: Any) -> Any:
        y = layer_norm(x, p["gain0"], p["bias0"])
        q, k, v = jnp.split(dense(y, p["qkv"]).reshape(batch, frames, heads, -1), 3, axis=-1)
        scores = jnp.einsum("bqhe,bkhe->bhqk", q, k) * (d // heads) ** -0.5
        shares = jax.nn.softmax(scores.astype(jnp.float32)).astype(BF16)
        x = x + dense(jnp.einsum("bhqk,bkhe->bqhe", shares, v).reshape(x.shape), p["out"])
        y = layer_norm(x, p["gain1"], p["bias1"])
        return x + dense(jax.nn.gelu(dense(y, p["up"])), p["down"])

    def unit(x: Any) -> Any:
        x = x.astype(jnp.float32)
        return (x * jax.lax.rsqrt(jnp.square(x).sum(axis=-1, keepdims=True) + 1e-6)).astype(BF16)

    def loss(params: Any, waves: Any, masked: Any, others: Any) -> Any:
        """Loss of waves [batch, length], masked [batch, frames] and frames of others [batch,
        frames, distractors].
        """
        x = waves[..., None].astype(BF16)
        for n, stride in enumerate(strides):
            x = jax.lax.conv_general_dilated(
                x,
                params[f"conv{n}"].astype(BF16),
                (stride,),
                "SAME",
                dimension_numbers=("NWC", "WIO", "NWC"),
            )
            x = jax.nn.gelu(x)
        target = unit(dense(x, params["target"]))
        hidden = masked[..., None].astype(BF16)
        x = dense(x, params["enter"]) * (1 - hidden) + params["mask"].astype(BF16) * hidden
        for p in params["layers"]:
            x = block(p, x)
        told = unit(dense(x, params["told"]))
        wrong = jax.vmap(lambda rows, at: rows[at])(target, others)
        near = jnp.einsum("bfd,bfd->bf", told, target)[..., None]
        far = jnp.einsum("bfd,bfnd->bfn", told, wrong)
        scores = jnp.concatenate([near, far], axis=-1).astype(jnp.float32) / 0.1
        lost = -jax.nn.log_softmax(scores)[..., 0]
        return (lost * masked).sum() / (masked.sum() + 1.0)

    kept = floats(batch, frames)
    return trained(
        loss, init, optax.adam(2e-4), floats(batch, length), kept, ids(batch, frames, distractors)
    )
