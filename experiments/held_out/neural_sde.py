"""Neural stochastic differential equation: a scan over steps of drift and diffusion networks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import BF16, Made, dense, floats, trained, weights


def make(
    batch: int = 16384,
    observed: int = 64,
    d: int = 256,
    hidden: int = 1024,
    steps: int = 32,
) -> Made:
    def init() -> Any:
        return {
            "first": weights(w=(observed, d))["w"],
            "drift": weights(a=(d + 1, hidden), b=(hidden, hidden), c=(hidden, d)),
            "spread": weights(a=(d + 1, hidden), b=(hidden, d)),
            "read": weights(w=(d, observed))["w"],
        }

    def loss(params: Any, seed: Any, start: Any, path: Any) -> Any:
        x = dense(start.astype(BF16), params["first"]).astype(jnp.float32)
        width = 1.0 / steps

        def advance(x: Any, at: Any) -> tuple[Any, Any]:
            number, wanted = at
            time = jnp.full((x.shape[0], 1), number * width, BF16)
            y = jnp.concatenate([x.astype(BF16), time], axis=-1)
            p = params["drift"]
            drift = jax.nn.silu(dense(jax.nn.silu(dense(y, p["a"])), p["b"]))
            drift = jnp.tanh(dense(drift, p["c"]).astype(jnp.float32))
            p = params["spread"]
            spread = jax.nn.softplus(dense(jax.nn.silu(dense(y, p["a"])), p["b"]))
            noise = jax.random.normal(jax.random.fold_in(jax.random.key(seed[0]), number), x.shape)
            x = x + width * drift + width**0.5 * spread.astype(jnp.float32) * noise
            seen = dense(x.astype(BF16), params["read"]).astype(jnp.float32)
            return x, ((seen - wanted) ** 2).mean()

        errors = jax.lax.scan(advance, x, (jnp.arange(steps), path.swapaxes(0, 1)))[1]
        return errors.mean()

    return trained(
        loss,
        init,
        optax.adam(1e-3),
        jax.ShapeDtypeStruct((1,), jnp.uint32),
        *(floats(batch, observed), floats(batch, steps, observed)),
    )
