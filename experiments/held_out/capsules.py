"""Capsules: votes of parts for wholes, weighted by routing in three rounds."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import BF16, Made, floats, ids, trained, weights


def make(
    batch: int = 1024,
    side: int = 32,
    channels: int = 256,
    parts: int = 16,
    pose: int = 8,
    wholes: int = 32,
    whole_pose: int = 16,
    rounds: int = 3,
) -> Made:
    grid = side // 4  # after two convolutions of stride 2

    def init() -> Any:
        key = jax.random.key(1)
        shape = (grid * grid * parts, wholes, pose, whole_pose)
        return {
            **weights(first=(5, 5, 3, channels), second=(5, 5, channels, parts * pose)),
            "votes": jax.random.normal(key, shape) * pose**-0.5,
            **weights(hidden=(wholes * whole_pose, 512), pixels=(512, side * side * 3)),
        }

    def convolve(x: Any, w: Any) -> Any:
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, w.astype(BF16), (2, 2), "SAME", dimension_numbers=layout
        )

    def squash(x: Any) -> Any:
        """Vectors of x [..., n], of lengths below 1."""
        square = (x * x).sum(axis=-1, keepdims=True)
        return x * square / (1.0 + square) * jax.lax.rsqrt(square + 1e-6)

    def routed(votes: Any) -> Any:
        """Poses [batch, wholes, n] of votes [batch, parts, wholes, n]."""
        logits = jnp.zeros(votes.shape[:-1])
        fixed = jax.lax.stop_gradient(votes)
        for number in range(rounds):
            shares = jax.nn.softmax(logits, axis=-1)
            of = votes if number == rounds - 1 else fixed
            found = squash(jnp.einsum("bpw,bpwn->bwn", shares, of))
            logits = logits + jnp.einsum("bpwn,bwn->bpw", fixed, found)
        return found

    def loss(params: Any, images: Any, labels: Any) -> Any:
        x = jax.nn.relu(convolve(images.astype(BF16), params["first"]))
        x = convolve(x, params["second"]).reshape(-1, grid * grid * parts, pose)
        x = squash(x.astype(jnp.float32)).astype(BF16)
        votes = jnp.einsum("bpi,pwin->bpwn", x, params["votes"].astype(BF16))
        found = routed(votes.astype(jnp.float32))
        length = jnp.sqrt((found * found).sum(axis=-1) + 1e-6)
        wanted = jax.nn.one_hot(labels, wholes)
        present = jax.nn.relu(0.9 - length) ** 2 * wanted
        absent = 0.5 * jax.nn.relu(length - 0.1) ** 2 * (1.0 - wanted)
        masked = (found * wanted[..., None]).reshape(-1, wholes * whole_pose)
        drawn = jax.nn.relu(masked @ params["hidden"]) @ params["pixels"]
        error = (jax.nn.sigmoid(drawn) - images.reshape(drawn.shape)) ** 2
        return (present + absent).sum(axis=-1).mean() + 0.4 * error.mean()

    return trained(loss, init, optax.adam(1e-3), floats(batch, side, side, 3), ids(batch))
