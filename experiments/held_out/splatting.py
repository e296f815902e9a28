"""Gaussian splatting: each tile of an image composes the nearest of the Gaussians that it sees."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import Made, floats, ids, trained


def make(
    count: int = 262_144,
    tiles: int = 1024,
    side: int = 16,
    seen: int = 128,
    across: int = 32,
) -> Made:
    def init() -> Any:
        keys = jax.random.split(jax.random.key(0), 5)
        return {
            "place": jax.random.normal(keys[0], (count, 3)),
            "scale": jax.random.normal(keys[1], (count, 3)) * 0.1 - 4.0,
            "turn": jax.random.normal(keys[2], (count, 4)),
            "colour": jax.random.normal(keys[3], (count, 3)),
            "opacity": jax.random.normal(keys[4], (count,)),
        }

    def projected(params: Any, camera: Any) -> tuple[Any, Any, Any]:
        """Centres [count, 2], inverse covariances [count, 3] and depths [count] in the image."""
        w, x, y, z = jnp.moveaxis(
            params["turn"] / (jnp.linalg.norm(params["turn"], axis=-1, keepdims=True) + 1e-6), -1, 0
        )
        rows = (
            (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
            (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
            (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
        )
        turned = jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=-2)
        half = turned * jnp.exp(params["scale"])[:, None, :]
        at = params["place"] @ camera[:3, :3].T + camera[:3, 3]
        depth = jax.nn.softplus(at[:, 2]) + 0.1
        seen_half = jnp.einsum("ij,njk->nik", camera[:2, :3], half) / depth[:, None, None]
        cov = jnp.einsum("nik,njk->nij", seen_half, seen_half)
        a, b, c = cov[:, 0, 0] + 1e-4, cov[:, 0, 1], cov[:, 1, 1] + 1e-4
        determinant = a * c - b * b
        inverse = jnp.stack([c, -b, a], axis=-1) / determinant[:, None]
        return at[:, :2] / depth[:, None], inverse, depth

    def loss(params: Any, camera: Any, visible: Any, image: Any) -> Any:
        """`visible` [tiles, seen] are the Gaussians of each tile, `image` [tiles, pixels, 3]."""
        centre, inverse, depth = projected(params, camera)
        order = jnp.argsort(jax.lax.stop_gradient(depth)[visible], axis=-1)
        visible = jnp.take_along_axis(visible, order, axis=-1)
        tile, pixel = jnp.arange(tiles), jnp.arange(side * side)
        x = (tile % across * side)[:, None] + pixel % side
        y = (tile // across * side)[:, None] + pixel // side
        at = jnp.stack([x, y], axis=-1) * (2.0 / (side * across)) - 1.0
        apart = at[:, :, None] - centre[visible][:, None]  # [tiles, pixels, seen, 2]
        shape = inverse[visible][:, None]
        dx, dy = apart[..., 0], apart[..., 1]
        power = shape[..., 0] * dx * dx + 2 * shape[..., 1] * dx * dy + shape[..., 2] * dy * dy
        alpha = jax.nn.sigmoid(params["opacity"])[visible][:, None] * jnp.exp(-0.5 * power)
        alpha = jnp.minimum(alpha, 0.99)
        passed = jnp.cumprod(1.0 - alpha, axis=-1)
        passed = jnp.concatenate([jnp.ones_like(passed[..., :1]), passed[..., :-1]], axis=-1)
        colour = jax.nn.sigmoid(params["colour"])[visible]
        drawn = jnp.einsum("tps,tsc->tpc", alpha * passed, colour)
        return jnp.abs(drawn - image).mean()

    pixels = floats(tiles, side * side, 3)
    return trained(loss, init, optax.adam(1e-3), floats(4, 4), ids(tiles, seen), pixels)
