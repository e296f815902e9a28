"""Deep equilibrium classifier of sequences: a fixed point, differentiated implicitly."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import (
    BF16,
    Made,
    cross_entropy,
    dense,
    floats,
    ids,
    layer_norm,
    trained,
    weights,
)


def make(
    batch: int = 64,
    length: int = 512,
    features: int = 256,
    d: int = 1024,
    steps: int = 6,
    classes: int = 1000,
) -> Made:
    def init() -> Any:
        cell = {"mix": (length, length), "up": (d, 2 * d), "down": (2 * d, d), "inject": (d, d)}
        norms = {"gain0": (d,), "bias0": (d,), "gain1": (d,), "bias1": (d,)}
        return {
            "cell": weights(**cell, **norms),
            **weights(first=(features, d), head=(d, classes)),
        }

    def cell(p: Any, z: Any, x: Any) -> Any:
        """One application to z [batch, length, d], with x injected."""
        mixed = jnp.einsum("ts,bsd->btd", p["mix"].astype(BF16), z)
        y = layer_norm(mixed + dense(x, p["inject"]), p["gain0"], p["bias0"])
        y = dense(jax.nn.gelu(dense(y, p["up"])), p["down"])
        return layer_norm(0.5 * (z + y), p["gain1"], p["bias1"])

    @jax.custom_vjp
    def solved(p: Any, x: Any) -> Any:
        return jax.lax.scan(lambda z, _: (cell(p, z, x), None), x, None, steps)[0]

    def forward(p: Any, x: Any) -> tuple[Any, Any]:
        z = solved(p, x)
        return z, (p, x, z)

    def backward(saved: Any, wanted: Any) -> tuple[Any, Any]:
        """Solves u = wanted + J u by iteration, J of the cell at the fixed point."""
        p, x, z = saved
        pull = jax.vjp(lambda z: cell(p, z, x), z)[1]
        u = jax.lax.scan(lambda u, _: (wanted + pull(u)[0], None), wanted, None, steps)[0]
        of_p, of_x = jax.vjp(lambda p, x: cell(p, z, x), p, x)[1](u)
        return of_p, of_x

    solved.defvjp(forward, backward)

    def loss(params: Any, x: Any, labels: Any) -> Any:
        z = solved(params["cell"], dense(x.astype(BF16), params["first"]))
        return cross_entropy(dense(z.mean(axis=1), params["head"]), labels)

    return trained(loss, init, optax.adam(1e-3), floats(batch, length, features), ids(batch))
