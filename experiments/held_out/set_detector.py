"""Detection as sets (DETR): queries read an image, matched to boxes by Sinkhorn iterations."""

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
    batch: int = 64,
    patches: int = 1024,
    patch: int = 768,
    d: int = 512,
    heads: int = 8,
    queries: int = 128,
    boxes: int = 32,
    classes: int = 96,
    layers: int = 2,
    rounds: int = 5,
) -> Made:
    def attention() -> Any:
        return weights(norm=(d,), shift=(d,), q=(d, d), k=(d, d), v=(d, d), out=(d, d))

    def mlp() -> Any:
        return weights(norm=(d,), shift=(d,), up=(d, 4 * d), down=(4 * d, d))

    def init() -> Any:
        return {
            **weights(first=(patch, d), places=(patches, d), queries=(queries, d)),
            "encoder": [{"self": attention(), "mlp": mlp()} for _ in range(layers)],
            "decoder": [
                {"self": attention(), "cross": attention(), "mlp": mlp()} for _ in range(layers)
            ],
            **weights(label=(d, classes), hidden=(d, d), box=(d, 4)),
        }

    def attend(p: Any, x: Any, read: Any, place: Any, read_place: Any) -> Any:
        y = layer_norm(x, p["norm"], p["shift"])
        read = y if read is None else read
        q, k = dense(y + place, p["q"]), dense(read + read_place, p["k"])
        q, k, v = (z.reshape(*z.shape[:-1], heads, -1) for z in (q, k, dense(read, p["v"])))
        scores = jnp.einsum("bqhk,bshk->bhqs", q * (d // heads) ** -0.5, k)
        shares = jax.nn.softmax(scores.astype(jnp.float32)).astype(BF16)
        read = jnp.einsum("bhqs,bshk->bqhk", shares, v).reshape(x.shape)
        return x + dense(read, p["out"])

    def feed(p: Any, x: Any) -> Any:
        y = jax.nn.relu(dense(layer_norm(x, p["norm"], p["shift"]), p["up"]))
        return x + dense(y, p["down"])

    def matched(cost: Any) -> Any:
        """Shares [batch, queries, boxes] of a soft matching of least cost."""
        shares = -cost
        for _ in range(rounds):
            shares = jax.nn.log_softmax(shares, axis=1)
            shares = jax.nn.log_softmax(shares, axis=2)
        return jax.lax.stop_gradient(jnp.exp(shares))

    def loss(params: Any, images: Any, labels: Any, wanted: Any) -> Any:
        places, asked = params["places"].astype(BF16), params["queries"].astype(BF16)
        x = dense(images.astype(BF16), params["first"])
        for p in params["encoder"]:
            x = feed(p["mlp"], attend(p["self"], x, None, places, places))
        y = jnp.zeros((x.shape[0], queries, d), BF16)
        total = 0.0
        for p in params["decoder"]:
            y = attend(p["self"], y, None, asked, asked)
            y = feed(p["mlp"], attend(p["cross"], y, x, asked, places))
            scores = jax.nn.log_softmax(dense(y, params["label"]).astype(jnp.float32))
            hidden = jax.nn.relu(dense(y, params["hidden"]))
            box = jax.nn.sigmoid(dense(hidden, params["box"]).astype(jnp.float32))
            told = jnp.take_along_axis(scores, labels[:, None, :], axis=-1)
            apart = abs(box[:, :, None, :] - wanted[:, None, :, :]).sum(axis=-1)
            cost = 5.0 * apart - told
            total = total + (matched(cost) * cost).sum(axis=(1, 2)).mean()
        return total

    return trained(
        loss,
        init,
        optax.adamw(1e-4),
        *(floats(batch, patches, patch), ids(batch, boxes), floats(batch, boxes, 4)),
    )
