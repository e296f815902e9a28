"""A plain optax loop, with a checkpoint at its end."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-3))


def init(key: jax.Array) -> Any:
    one, two = jax.random.split(key)
    params = {
        "w1": 0.1 * jax.random.normal(one, (32, 64)),
        "b1": jnp.zeros((64,)),
        "w2": 0.1 * jax.random.normal(two, (64, 32)),
    }
    return params, optimizer.init(params)


def step(params: Any, opt_state: Any, batch: Any) -> tuple[Any, Any, jax.Array]:
    def loss(params: Any) -> jax.Array:
        hidden = jax.nn.gelu(batch["x"] @ params["w1"] + params["b1"])
        return jnp.mean((hidden @ params["w2"] - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value


def batches(count: int) -> Any:
    rng = np.random.default_rng(0)
    for _ in range(count):
        x = rng.normal(size=(64, 32)).astype(np.float32)
        yield {"x": x, "y": np.sin(x)}


def main(folder: str) -> list[float]:
    train_step = jax.jit(step, donate_argnums=(0, 1))
    params, opt_state = init(jax.random.key(0))
    losses = []
    for batch in batches(8):
        params, opt_state, value = train_step(params, opt_state, batch)
        losses.append(float(value))
    with ocp.StandardCheckpointer() as saver:
        saver.save(f"{folder}/last", params)
    return losses


if __name__ == "__main__":
    print(main(sys.argv[1]))
