"""One process of `test_multiprocess.py`: port, processes, index, cases. Prints what happened."""

from __future__ import annotations

import json
import sys
from typing import Any

import jax

port, processes, index, cases = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", processes, index)

import jax.numpy as jnp  # noqa: E402  (after initialize, which must come first)
import numpy as np  # noqa: E402

import partir_search as ps  # noqa: E402

state = {"w1": np.ones((8, 16), np.float32), "w2": np.ones((16, 4), np.float32)}
batch = np.arange(64, dtype=np.float32).reshape(8, 8) / 64


def step(state: Any, batch: Any) -> Any:
    def loss(state: Any) -> Any:
        return jnp.mean(jnp.square(jnp.tanh(batch @ state["w1"]) @ state["w2"]))

    value, grads = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads), value


def options(case: str) -> dict[str, Any]:
    if case == "local":  # each on its own devices, and as it likes
        return {"schedule": [ps.ManualPartition({"batch": 0}, axis="batch")] * index}
    if case == "differ":  # somebody else's code
        axis = "batch" if index == 0 else "model"
        return {"schedule": [ps.ManualPartition({"batch": 0}, axis=axis)]}
    if case == "fails":  # on the first process, which plans for all
        glob = "no_such" if index == 0 else "batch"
        return {"schedule": [ps.ManualPartition({glob: 0}, axis="batch")], "plan_on": "first"}
    return {"episodes": 40, "seed": index, "plan_on": "first"}  # every other search would differ


def rows_here(plan: ps.Plan) -> slice:
    """The rows that this process's devices hold."""
    places = plan.in_shardings[0][1].addressable_devices_indices_map(batch.shape).values()
    spans = [index[0].indices(len(batch)) for index in places]
    return slice(min(s[0] for s in spans), max(s[1] for s in spans))


def outcome(case: str) -> dict[str, Any]:
    """Plan and loss of a step, or the error in their place."""
    own = jax.local_devices() if case == "local" else None
    mesh = jax.make_mesh((len(own) // 2, 2) if own else (2, 4), ("batch", "model"), devices=own)
    partitioned = ps.auto_partition(mesh, machine="tpu_v5e", **options(case))(step)
    try:
        plan = partitioned.plan(state, batch)
        placed = plan.make_global_batch(batch[rows_here(plan)]) if case == "first" else batch
        _, value = partitioned(state, placed)
    except (ps.PlansDiffer, RuntimeError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"plan": plan.to_json(), "loss": float(value), "searched": bool(plan.searches)}


print(json.dumps({case: outcome(case) for case in cases}))
