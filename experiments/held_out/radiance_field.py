"""Radiance field: a network of points on rays, and colours composed along each ray."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import BF16, Made, dense, floats, trained, weights


def make(
    rays: int = 8192,
    samples: int = 128,
    d: int = 256,
    layers: int = 8,
    skip: int = 4,
    waves: int = 10,
    view_waves: int = 4,
) -> Made:
    place, view = 3 + 6 * waves, 3 + 6 * view_waves

    def init() -> Any:
        def entering(number: int) -> int:
            return place if number == 0 else d + place * (number == skip)

        return {
            "layers": [weights(w=(entering(n), d), bias=(d,)) for n in range(layers)],
            **weights(density=(d, 1), feature=(d, d), turned=(d + view, d // 2)),
            "colour": weights(w=(d // 2, 3))["w"],
        }

    def encoded(x: Any, count: int) -> Any:
        """Sines and cosines of x [..., 3] at `count` frequencies, beside x."""
        angles = x[..., None, :] * 2.0 ** jnp.arange(count)[:, None]
        angles = angles.reshape(*x.shape[:-1], -1)
        return jnp.concatenate([x, jnp.sin(angles), jnp.cos(angles)], axis=-1).astype(BF16)

    def field(params: Any, points: Any, towards: Any) -> tuple[Any, Any]:
        """Densities [rays, samples] and colours [rays, samples, 3]."""
        first = h = encoded(points, waves)
        for number, p in enumerate(params["layers"]):
            h = jnp.concatenate([h, first], axis=-1) if number == skip else h
            h = jax.nn.relu(dense(h, p["w"]) + p["bias"].astype(BF16))
        density = jax.nn.softplus(dense(h, params["density"]).astype(jnp.float32))[..., 0]
        seen = jnp.broadcast_to(encoded(towards, view_waves)[:, None], (*h.shape[:-1], view))
        h = jnp.concatenate([dense(h, params["feature"]), seen], axis=-1)
        h = jax.nn.relu(dense(h, params["turned"]))
        return density, jax.nn.sigmoid(dense(h, params["colour"]).astype(jnp.float32))

    def loss(params: Any, origins: Any, towards: Any, wanted: Any) -> Any:
        at = jnp.linspace(2.0, 6.0, samples)
        points = origins[:, None] + towards[:, None] * at[:, None]
        density, colours = field(params, points, towards)
        passed = jnp.exp(-density * (at[1] - at[0]))
        before = jnp.concatenate([jnp.ones_like(passed[:, :1]), passed[:, :-1]], axis=1)
        share = (1.0 - passed) * jnp.cumprod(before, axis=1)
        return ((jnp.einsum("rs,rsc->rc", share, colours) - wanted) ** 2).mean()

    return trained(loss, init, optax.adam(5e-4), floats(rays, 3), floats(rays, 3), floats(rays, 3))
