"""Slot attention: slots that compete for patches in rounds, gated updates, a decoder per slot."""

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
    batch: int = 128, side: int = 32, patch: int = 48, d: int = 256, slots: int = 8, rounds: int = 3
) -> Made:
    places = side * side

    def init() -> Any:
        maps = {"enter": (patch, d), "mix": (d, d), "keys": (d, d), "values": (d, d)}
        maps |= {"query": (d, d), "gates": (2 * d, 2 * d), "new": (2 * d, d)}
        maps |= {"up": (d, 2 * d), "down": (2 * d, d), "first": (slots, d), "at": (places, d)}
        maps |= {"wide": (d, 2 * d), "drawn": (2 * d, patch + 1)}
        norms = dict.fromkeys(("gain0", "bias0", "gain1", "bias1", "gain2", "bias2"), (d,))
        return weights(**maps, **norms)

    def updated(p: Any, slot: Any, seen: Any) -> Any:
        """Gated recurrent unit of slots [batch, slots, d] and what they saw."""
        both = jnp.concatenate([slot, seen], axis=-1)
        reset, keep = jnp.split(jax.nn.sigmoid(dense(both, p["gates"])), 2, axis=-1)
        new = jnp.tanh(dense(jnp.concatenate([reset * slot, seen], axis=-1), p["new"]))
        slot = keep * slot + (1 - keep) * new
        y = layer_norm(slot, p["gain2"], p["bias2"])
        return slot + dense(jax.nn.relu(dense(y, p["up"])), p["down"])

    def loss(p: Any, images: Any) -> Any:
        x = dense(images.astype(BF16), p["enter"]) + p["at"].astype(BF16)
        x = layer_norm(dense(jax.nn.relu(x), p["mix"]), p["gain0"], p["bias0"])
        keys, values = dense(x, p["keys"]), dense(x, p["values"])
        slot = jnp.broadcast_to(p["first"].astype(BF16), (batch, slots, d))
        for _ in range(rounds):
            query = dense(layer_norm(slot, p["gain1"], p["bias1"]), p["query"]) * d**-0.5
            scores = jnp.einsum("bpd,bsd->bps", keys, query).astype(jnp.float32)
            shares = jax.nn.softmax(scores, axis=-1) + 1e-6
            shares = (shares / shares.sum(axis=1, keepdims=True)).astype(BF16)
            slot = updated(p, slot, jnp.einsum("bps,bpd->bsd", shares, values))
        spread = slot[:, :, None] + p["at"].astype(BF16)
        drawn = dense(jax.nn.relu(dense(spread, p["wide"])), p["drawn"]).astype(jnp.float32)
        mask = jax.nn.softmax(drawn[..., -1:], axis=1)
        return jnp.square((drawn[..., :-1] * mask).sum(axis=1) - images).mean()

    return trained(loss, init, optax.adam(4e-4), floats(batch, places, patch))
