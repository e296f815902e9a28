"""Generative flow network: balance of trajectories that build objects step by step."""

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
    batch: int = 1024,
    steps: int = 32,
    parts: int = 64,
    kinds: int = 32,
    d: int = 512,
    layers: int = 3,
) -> Made:
    def init() -> Any:
        layer = {"side": (d, 2 * d), "back": (d, d), "gain": (d,), "bias": (d,)}
        ends = {"enter": (parts * kinds, d), "forward": (d, parts * kinds), "backward": (d, parts)}
        scale = {"total": jnp.zeros(())}
        return {"layers": [weights(**layer) for _ in range(layers)], **weights(**ends), **scale}

    def loss(params: Any, part: Any, kind: Any, reward: Any) -> Any:
        """Squared imbalance of trajectories: at each step one of `parts` becomes one of `kinds`."""
        chosen = part * kinds + kind
        one = jax.nn.one_hot(chosen, parts * kinds, dtype=BF16)
        state = jnp.cumsum(one, axis=1)
        empty = jnp.pad(state, ((0, 0), (1, 0), (0, 0)))
        x = dense(empty, params["enter"])
        for p in params["layers"]:
            y = layer_norm(x, p["gain"], p["bias"])
            a, b = jnp.split(dense(y, p["side"]), 2, axis=-1)
            x = x + dense(jax.nn.silu(a) * b, p["back"])
        taken = jax.lax.stop_gradient(empty.reshape(*empty.shape[:2], parts, kinds).sum(axis=-1))
        full = jnp.repeat(taken, kinds, axis=-1) > 0
        ahead = dense(x[:, :-1], params["forward"]).astype(jnp.float32)
        ahead = jax.nn.log_softmax(jnp.where(full[:, :-1], -1e9, ahead))
        behind = dense(x[:, 1:], params["backward"]).astype(jnp.float32)
        behind = jax.nn.log_softmax(jnp.where(taken[:, 1:] > 0, behind, -1e9))
        went = jnp.take_along_axis(ahead, chosen[..., None], axis=-1)[..., 0].sum(axis=1)
        came = jnp.take_along_axis(behind, part[..., None], axis=-1)[..., 0].sum(axis=1)
        return jnp.square(params["total"] + went - came - reward).mean()

    where = ids(batch, steps)
    return trained(loss, init, optax.adam(1e-3), where, where, floats(batch))
