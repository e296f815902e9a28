"""Kolmogorov-Arnold network: a learned B-spline on each edge between features."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import BF16, Made, cross_entropy, dense, floats, ids, trained


def make(
    batch: int = 16384,
    widths: tuple[int, ...] = (256, 512, 512, 64),
    knots: int = 8,
    order: int = 3,
) -> Made:
    pairs = list(itertools.pairwise(widths))

    def init() -> Any:
        keys = jax.random.split(jax.random.key(0), 2 * len(pairs))
        return [
            {
                "splines": jax.random.normal(keys[2 * n], (a, knots + order, b)) * a**-0.5,
                "base": jax.random.normal(keys[2 * n + 1], (a, b)) * a**-0.5,
                "gain": jnp.ones((a,)),
            }
            for n, (a, b) in enumerate(pairs)
        ]

    def bases(x: Any) -> Any:
        """B-splines [batch, d, knots + order] of x [batch, d], by Cox and de Boor's recursion."""
        step = 2.0 / knots
        at = jnp.arange(-order, knots + order + 1) * step - 1.0
        x = x[..., None]
        found = ((x >= at[:-1]) & (x < at[1:])).astype(jnp.float32)
        for k in range(1, order + 1):
            left = (x - at[: -k - 1]) / (k * step) * found[..., :-1]
            right = (at[k + 1 :] - x) / (k * step) * found[..., 1:]
            found = left + right
        return found

    def loss(params: Any, x: Any, labels: Any) -> Any:
        for p in params:
            x = jnp.tanh(x.astype(jnp.float32) * p["gain"])
            bent = jnp.einsum("bik,iko->bo", bases(x).astype(BF16), p["splines"].astype(BF16))
            x = bent + dense(jax.nn.silu(x).astype(BF16), p["base"])
        return cross_entropy(x, labels)

    return trained(loss, init, optax.adamw(1e-3), floats(batch, widths[0]), ids(batch))
