"""Pointer-generator: summaries whose words are written, or copied from the article by attention."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import (
    BF16,
    Made,
    dense,
    ids,
    layer_norm,
    trained,
    weights,
)


def make(
    batch: int = 128,
    article: int = 512,
    summary: int = 128,
    d: int = 512,
    layers: int = 2,
    vocabulary: int = 8192,
) -> Made:
    def init() -> Any:
        layer = {"mix": (9, d), "up": (d, 2 * d), "down": (2 * d, d), "gain": (d,), "bias": (d,)}
        ends = {"embed": (vocabulary, d), "head": (d, vocabulary), "gate": (d, 1)}
        ends |= {"query": (d, d), "key": (d, d), "value": (d, d)}
        towers = {t: [weights(**layer) for _ in range(layers)] for t in ("reader", "writer")}
        return {**towers, **weights(**ends)}

    def causal(p: Any, x: Any) -> Any:
        """Causal depthwise convolution and an MLP of x [batch, length, d]."""
        y = layer_norm(x, p["gain"], p["bias"])
        y = jax.lax.conv_general_dilated(
            y,
            p["mix"].astype(BF16)[:, None],
            (1,),
            [(8, 0)],
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=d,
        )
        return x + dense(jax.nn.silu(dense(y, p["up"])), p["down"])

    def loss(p: Any, source: Any, target: Any) -> Any:
        """Loss of source [batch, article] and target [batch, summary + 1] words."""
        x, y = p["embed"][source].astype(BF16), p["embed"][target[:, :-1]].astype(BF16)
        for layer in p["reader"]:
            x = causal(layer, x)
        for layer in p["writer"]:
            y = causal(layer, y)
        scores = jnp.einsum("btd,bsd->bts", dense(y, p["query"]), dense(x, p["key"]))
        shares = jax.nn.softmax(scores.astype(jnp.float32) * d**-0.5)
        y = y + jnp.einsum("bts,bsd->btd", shares.astype(BF16), dense(x, p["value"]))
        written = jax.nn.softmax(dense(y, p["head"]).astype(jnp.float32))
        gate = jax.nn.sigmoid(dense(y, p["gate"]).astype(jnp.float32))
        rows = jnp.arange(batch)[:, None, None], jnp.arange(summary)[None, :, None]
        both = (gate * written).at[(*rows, source[:, None])].add((1 - gate) * shares)
        told = jnp.take_along_axis(both, target[:, 1:, None], axis=-1)
        return -jnp.log(told + 1e-8).mean()

    words = ids(batch, article), ids(batch, summary + 1)
    return trained(loss, init, optax.adagrad(0.15), *words)
