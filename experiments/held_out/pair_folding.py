"""Folding of proteins: pairs of residues, triangle products, attention along rows with a bias."""

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
    batch: int = 16,
    residues: int = 128,
    kinds: int = 21,
    d: int = 128,
    heads: int = 4,
    bins: int = 64,
    layers: int = 3,
) -> Made:
    def init() -> Any:
        block = {"left": (d, 2 * d), "right": (d, 2 * d), "gate": (d, d), "joined": (d, d)}
        block |= {"qkv": (d, 3 * d), "near": (d, heads), "open": (d, d), "out": (d, d)}
        block |= {"up": (d, 4 * d), "down": (4 * d, d)}
        norms = dict.fromkeys(("gain0", "bias0", "gain1", "bias1", "gain2", "bias2"), (d,))
        ends = {"row": (kinds, d), "column": (kinds, d), "away": (65, d), "last": (d, bins)}
        return {"blocks": [weights(**block, **norms) for _ in range(layers)], **weights(**ends)}

    def triangle(p: Any, z: Any) -> Any:
        """Sums of products of edges over third residues, z [batch, i, j, d]."""
        y = layer_norm(z, p["gain0"], p["bias0"])
        left, right = (jnp.split(dense(y, p[side]), 2, axis=-1) for side in ("left", "right"))
        a, b = left[0] * jax.nn.sigmoid(left[1]), right[0] * jax.nn.sigmoid(right[1])
        met = jnp.einsum("bikd,bjkd->bijd", a, b) * residues**-0.5
        return dense(met, p["joined"]) * jax.nn.sigmoid(dense(y, p["gate"]))

    def attend(p: Any, z: Any) -> Any:
        """Gated attention along the rows, with a bias of pairs for each head."""
        y = layer_norm(z, p["gain1"], p["bias1"])
        parts = dense(y, p["qkv"]).reshape(*y.shape[:-1], 3, heads, -1)
        q, k, v = (parts[..., i, :, :] for i in range(3))
        scores = jnp.einsum("biqhc,bikhc->bihqk", q, k) * (d // heads) ** -0.5
        near = dense(y, p["near"]).transpose(0, 3, 1, 2)[:, None]
        shares = jax.nn.softmax(scores.astype(jnp.float32) + near.astype(jnp.float32)).astype(BF16)
        mixed = jnp.einsum("bihqk,bikhc->biqhc", shares, v).reshape(z.shape)
        return dense(mixed * jax.nn.sigmoid(dense(y, p["open"])), p["out"])

    def loss(params: Any, chain: Any, places: Any) -> Any:
        at = jnp.arange(residues)
        away = jnp.clip(at[:, None] - at, -32, 32) + 32
        sides = params["row"][chain][:, :, None] + params["column"][chain][:, None]
        z = (sides + params["away"][away]).astype(BF16)
        for p in params["blocks"]:
            z = z + triangle(p, z)
            z = z + attend(p, z)
            y = layer_norm(z, p["gain2"], p["bias2"])
            z = z + dense(jax.nn.relu(dense(y, p["up"])), p["down"])
        logits = dense(z + z.swapaxes(1, 2), params["last"]).astype(jnp.float32)
        apart = jnp.square(places[:, :, None] - places[:, None]).sum(-1)
        found = jnp.clip(4.0 * jnp.sqrt(apart + 1e-6), 0, bins - 1).astype(jnp.int32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, found).mean()

    places = floats(batch, residues, 3)
    return trained(loss, init, optax.adam(1e-3), ids(batch, residues), places)
