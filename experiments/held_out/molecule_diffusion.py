"""Equivariant diffusion of molecules: all pairs of atoms, displacements, noise of positions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import BF16, Made, dense, floats, ids, trained, weights


def make(batch: int = 64, atoms: int = 64, kinds: int = 16, d: int = 256, layers: int = 4) -> Made:
    def init() -> Any:
        layer = {"pair": (2 * d + 1, d), "edge": (d, d), "gate": (d, 1), "move": (d, d)}
        layer |= {"far": (d, 1), "node": (2 * d, d), "out": (d, d)}
        return {
            "layers": [weights(**layer) for _ in range(layers)],
            **weights(kind=(kinds, d), time=(1, d), last=(d, kinds)),
        }

    def layer(p: Any, h: Any, x: Any) -> tuple[Any, Any]:
        """Features h [batch, atoms, d] and positions x [batch, atoms, 3] after messages."""
        apart = x[:, :, None] - x[:, None]
        far = jnp.square(apart).sum(-1, keepdims=True)
        shape = (batch, atoms, atoms, d)
        sides = jnp.broadcast_to(h[:, :, None], shape), jnp.broadcast_to(h[:, None], shape)
        pairs = jnp.concatenate([*sides, far.astype(BF16)], axis=-1)
        edge = jax.nn.silu(dense(jax.nn.silu(dense(pairs, p["pair"])), p["edge"]))
        edge = edge * jax.nn.sigmoid(dense(edge, p["gate"]))
        pull = dense(jax.nn.silu(dense(edge, p["move"])), p["far"]).astype(jnp.float32)
        x = x + (apart / (jnp.sqrt(far + 1e-6) + 1.0) * pull).mean(axis=2)
        seen = jnp.concatenate([h, edge.sum(axis=2)], axis=-1)
        return h + dense(jax.nn.silu(dense(seen, p["node"])), p["out"]), x

    def loss(params: Any, kind: Any, places: Any, times: Any, noise: Any) -> Any:
        signal = jnp.cos(0.5 * jnp.pi * times)[:, None, None]
        noised = signal * places + jnp.sin(0.5 * jnp.pi * times)[:, None, None] * noise
        h = (params["kind"][kind] + (times[:, None] @ params["time"])[:, None]).astype(BF16)
        x = noised
        for p in params["layers"]:
            h, x = layer(p, h, x)
        wrong = jnp.square(x - noised - noise).mean()
        logits = dense(h, params["last"]).astype(jnp.float32)
        return wrong + optax.softmax_cross_entropy_with_integer_labels(logits, kind).mean()

    places = floats(batch, atoms, 3)
    return trained(loss, init, optax.adam(1e-4), ids(batch, atoms), places, floats(batch), places)
