"""Model-agnostic meta-learning: gradients through steps of gradient descent of each task."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import Made, cross_entropy, dense, floats, ids, trained, weights


def make(
    tasks: int = 64,
    shots: int = 64,
    features: int = 1024,
    hidden: int = 1024,
    ways: int = 32,
    steps: int = 2,
    rate: float = 0.1,
) -> Made:
    def init() -> Any:
        layers = {"first": (features, hidden), "second": (hidden, hidden), "head": (hidden, ways)}
        biases = {"bias0": (hidden,), "bias1": (hidden,)}
        return {**weights(**layers, **biases), "rates": jnp.full((steps,), rate)}

    def fitted(p: Any, x: Any, y: Any) -> Any:
        """Loss of weights p on one task's examples x [shots, features]."""
        x = jax.nn.elu(dense(x, p["first"]) + p["bias0"].astype(x.dtype))
        x = jax.nn.elu(dense(x, p["second"]) + p["bias1"].astype(x.dtype))
        return cross_entropy(dense(x, p["head"]), y)

    def adapted(p: Any, rates: Any, x: Any, y: Any) -> Any:
        """Weights of one task after gradient steps on its support examples."""
        for step in range(steps):
            slopes = jax.grad(fitted)(p, x, y)
            p = jax.tree.map(lambda w, g, at=step: w - rates[at] * g, p, slopes)
        return p

    def loss(params: Any, seen: Any, names: Any, asked: Any, wanted: Any) -> Any:
        shared = {k: v for k, v in params.items() if k != "rates"}

        def task(x: Any, y: Any, query: Any, answer: Any) -> Any:
            x, query = x.astype(jnp.bfloat16), query.astype(jnp.bfloat16)
            return fitted(adapted(shared, params["rates"], x, y), query, answer)

        return jax.vmap(task)(seen, names, asked, wanted).mean()

    examples = floats(tasks, shots, features), ids(tasks, shots)
    return trained(loss, init, optax.adam(1e-3), *examples, *examples)
