"""A small train step over all devices of a cluster: the program that the launchers here start.

    python examples/launch/train.py --mesh=data:2,model:4

Every process of a cluster runs the same command with `--cluster`. The first process plans, the
others replay its plan; each reads its own rows of the batch. Replace `new_state`, `step` and
`rows` by your own.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import partir_search as ps

WIDTH, BATCH = 256, 512
OPTIMIZER = optax.adamw(1e-3)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mesh", default="data:2,model:4", help="axes and their sizes")
    parser.add_argument("--machine", default=None, help="default: the chips of the mesh")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--cluster", action="store_true", help="join the processes that jax finds")
    return parser.parse_args()


def new_state() -> Any:
    one, two = jax.random.split(jax.random.key(0))
    params = {
        "w1": 0.05 * jax.random.normal(one, (WIDTH, 4 * WIDTH)),
        "w2": 0.05 * jax.random.normal(two, (4 * WIDTH, WIDTH)),
    }
    return {"params": params, "opt_state": OPTIMIZER.init(params)}


def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
    def loss(params: Any) -> jax.Array:
        hidden = jax.nn.relu(batch["x"] @ params["w1"])
        return jnp.mean((hidden @ params["w2"] - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(state["params"])
    updates, opt_state = OPTIMIZER.update(grads, state["opt_state"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state}, value


def rows(number: int) -> dict[str, np.ndarray]:
    """Batch of one step, equal on all processes."""
    x = np.random.default_rng(number).normal(size=(BATCH, WIDTH)).astype(np.float32)
    return {"x": x, "y": np.tanh(x)}


def main() -> None:
    args = arguments()
    if args.cluster:
        if os.environ.get("JAX_PLATFORMS") == "cpu":
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize()
    shape = ps.MeshShape.parse(args.mesh)
    mesh = jax.make_mesh(shape.sizes, shape.names)
    options = {"machine": args.machine, "plan_on": "first", "progress": jax.process_index() == 0}
    train_step = ps.auto_partition(mesh, donate_argnums=0, **options)(step)
    batch = rows(0)
    plan = train_step.plan(jax.eval_shape(new_state), batch)
    state = train_step.init(new_state, batch)
    for number in range(args.steps):
        state, value = train_step(state, plan.make_global_batch(rows(number)))
        if jax.process_index() == 0:
            print(f"step {number}: loss {float(value):.6f}", flush=True)
        else:
            float(value)


if __name__ == "__main__":
    main()
