"""Equivariant network of atoms: tensor products of scalars and vectors, per channel."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import BF16, Made, dense, floats, ids, trained, weights


def make(
    batch: int = 64,
    atoms: int = 48,
    kinds: int = 16,
    d: int = 128,
    waves: int = 16,
    layers: int = 3,
) -> Made:
    def init() -> Any:
        layer = {"radial": (waves, 64), "paths": (64, 5 * d), "scalars": (2 * d, 2 * d)}
        layer |= {"vectors": (3 * d, d), "own": (d, 2 * d), "turn": (d, d)}
        return {
            "layers": [weights(**layer) for _ in range(layers)],
            **weights(kind=(kinds, d), out=(d, 1)),
        }

    def layer(p: Any, s: Any, v: Any, near: Any, toward: Any) -> tuple[Any, Any]:
        """Scalars s [batch, atoms, d] and vectors v [batch, atoms, 3, d] after messages.

        Args:
          near: radial functions [batch, atoms, atoms, waves].
          toward: unit vectors [batch, atoms, atoms, 3].
        """
        paths = dense(jax.nn.silu(dense(near, p["radial"])), p["paths"])
        ss, sv, vs, vv, crossed = jnp.split(paths, 5, axis=-1)
        scalars = jnp.einsum("bijc,bjc->bic", ss, s)
        along = jnp.einsum("bijx,bjxc->bijc", toward, v)
        scalars = jnp.concatenate([scalars, (vv * along).sum(axis=2)], axis=-1)
        vectors = jnp.einsum("bijx,bijc->bixc", toward, sv * s[:, None])
        kept = jnp.einsum("bijc,bjxc->bixc", vs, v)
        axes = jnp.roll(toward, 1, axis=-1), jnp.roll(toward, 2, axis=-1)
        sides = jnp.roll(v, 2, axis=2), jnp.roll(v, 1, axis=2)
        turned = sum(
            sign * jnp.einsum("bijx,bijc,bjxc->bixc", axis, crossed, side)
            for sign, axis, side in zip((1, -1), axes, sides, strict=True)
        )
        gates, s = jnp.split(dense(scalars, p["scalars"]) + dense(s, p["own"]), 2, axis=-1)
        new = dense(jnp.concatenate([vectors, kept, turned], axis=-1), p["vectors"])
        return jax.nn.silu(s), dense(v, p["turn"]) + new * jax.nn.sigmoid(gates)[:, :, None]

    def energy(params: Any, kind: Any, places: Any) -> Any:
        apart = places[:, :, None] - places[:, None]
        far = jnp.sqrt(jnp.square(apart).sum(axis=-1, keepdims=True) + 1e-6)
        near = jnp.exp(-jnp.square(far - jnp.linspace(0.0, 4.0, waves))).astype(BF16)
        toward = (apart / far).astype(BF16)
        s = params["kind"][kind].astype(BF16)
        v = jnp.zeros((batch, atoms, 3, d), BF16)
        for p in params["layers"]:
            s, v = layer(p, s, v, near, toward)
        return dense(s, params["out"]).astype(jnp.float32).sum(axis=(1, 2))

    def loss(params: Any, kind: Any, places: Any, wanted: Any) -> Any:
        return jnp.square(energy(params, kind, places) - wanted).mean()

    batches = ids(batch, atoms), floats(batch, atoms, 3), floats(batch)
    return trained(loss, init, optax.adam(1e-3), *batches)
