"""A pipeline's train state by layers and by stage, compiled for TPU v5e without hardware.

    python -m experiments.staged_state

Eight residual layers written out (d 1,024, hidden 4,096, bf16 products, f32 state), vocabulary
8,192, 32 sequences of 512, AdamW clipped by the global norm; `ps.Pipeline("stage", microbatches=8)`
on `stage:4, data:2`, all else searched. Prints predicted seconds, and predicted and compiled
collectives and peaks, without and with `staged_state=True`. Nothing runs.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from absl import app
from jax.sharding import AbstractMesh

import partir_search as ps

WIDTH, WORDS, LENGTH, LAYERS, BATCH = 1024, 8192, 512, 8, 32
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


def narrow(x: Any) -> Any:
    return x.astype(jnp.bfloat16)


def layer(h: Any, p: Any) -> Any:
    return h + jnp.tanh(h @ narrow(p["up"])) @ narrow(p["down"])


def train_step(state: Any, tokens: Any) -> Any:
    def loss(params: Any) -> Any:
        table = narrow(params["embedding"])
        h = functools.reduce(layer, params["layers"], table[tokens[:, :-1]])
        scores = jax.nn.log_softmax((h @ table.T).astype(jnp.float32))
        return -jnp.take_along_axis(scores, tokens[:, 1:, None], axis=2).mean()

    value, grads = jax.value_and_grad(loss)(state["params"])
    updates, opt = OPTIMIZER.update(grads, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, value


def initial() -> Any:
    def zeros(*shape: int) -> Any:
        return jnp.zeros(shape, jnp.float32)

    layers = [{"up": zeros(WIDTH, 4 * WIDTH), "down": zeros(4 * WIDTH, WIDTH)}] * LAYERS
    params = {"embedding": zeros(WORDS, WIDTH), "layers": layers}
    return {"params": params, "opt": OPTIMIZER.init(params)}


def main(_: Any) -> None:
    state = jax.eval_shape(initial)
    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH + 1), jnp.int32)
    mesh = AbstractMesh((4, 2), ("stage", "data"))
    for staged in (False, True):
        pipeline = ps.Pipeline("stage", microbatches=8, chunks=1, staged_state=staged)
        step = ps.auto_partition(
            mesh,
            machine="tpu_v5e",
            schedule=[pipeline, ps.AutomaticPartition()],
            episodes=40,
            progress=False,
        )(jax.jit(train_step, donate_argnums=0))
        plan = step.plan(state, tokens)
        print(f"{pipeline}: {plan.cost.seconds:.5f} s, exposed {plan.cost.collective_seconds:.5f}")
        print(plan.verify("tpu_v5e:2x4"))


if __name__ == "__main__":
    app.run(main)
