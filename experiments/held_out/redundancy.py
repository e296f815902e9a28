"""Barlow twins: two views of images, batch norms, and the correlations of wide projections."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import BF16, Made, dense, floats, trained, weights


def make(
    batch: int = 8192,
    pixels: int = 3072,
    d: int = 2048,
    blocks: int = 3,
    projected: int = 4096,
    off_diagonal: float = 5e-3,
) -> Made:
    def init() -> Any:
        block = {"up": (d, d), "down": (d, d), "gain0": (d,), "gain1": (d,)}
        ends = {"first": (pixels, d), "wide": (d, projected), "last": (projected, projected)}
        return {
            "blocks": [weights(**block) for _ in range(blocks)],
            **weights(**ends, gain=(projected,)),
        }

    def batch_norm(x: Any, gain: Any) -> Any:
        """Divides x [batch, n] by its deviation in the batch, around the mean."""
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(axis=0)
        scale = jax.lax.rsqrt(jnp.square(centred).mean(axis=0) + 1e-5)
        return (centred * scale * (1.0 + gain)).astype(BF16)

    def encoded(params: Any, x: Any) -> Any:
        """Projections [batch, projected] of x [batch, pixels]."""
        x = dense(x.astype(BF16), params["first"])
        for p in params["blocks"]:
            inner = jax.nn.relu(batch_norm(dense(x, p["up"]), p["gain0"]))
            x = jax.nn.relu(x + batch_norm(dense(inner, p["down"]), p["gain1"]))
        x = jax.nn.relu(batch_norm(dense(x, params["wide"]), params["gain"]))
        return dense(x, params["last"])

    def loss(params: Any, left: Any, right: Any) -> Any:
        one, two = (batch_norm(encoded(params, x), 0.0) for x in (left, right))
        alike = jnp.einsum("bi,bj->ij", one, two).astype(jnp.float32) / batch
        on = jnp.eye(projected)
        wrong = jnp.square(alike - on)
        return (wrong * on).sum() + off_diagonal * (wrong * (1.0 - on)).sum()

    return trained(loss, init, optax.adam(1e-3), floats(batch, pixels), floats(batch, pixels))
