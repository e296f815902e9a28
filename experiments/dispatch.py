"""Host time of a call of a partitioned step against `jax.jit` with the plan's shardings.

    python -m experiments.dispatch --leaves=1200

Both steps scale a state of many small arrays; calls alternate in one process, each first in every
other round. Prints the CPU seconds of the calling thread per call (dispatch; the devices' threads
are not counted) and the median ratio of a round. The program with the state made first is slower
by up to a seventh, also where both are `jax.jit`: the ratio is the geometric mean over both orders,
which are printed too.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from experiments.devices import use_cpu_devices

use_cpu_devices()

import jax  # noqa: E402  (the devices must be set before jax starts)
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from absl import app, flags  # noqa: E402

import partir_search as ps  # noqa: E402

FLAGS = flags.FLAGS
flags.DEFINE_integer("leaves", 1200, "Arrays of the state.")
flags.DEFINE_list("meshes", ["2x4", "1x1"], "Sizes of the mesh axes x and y.")
flags.DEFINE_integer("rounds", 200, "Calls timed of each program.")


def new_state(leaves: int) -> dict[str, Any]:
    """Parameters and two moments, as a train state of layers with four weights."""
    layers = leaves // 12
    weights = {f"layer_{i}": {f"w{j}": jnp.ones((16, 8)) for j in range(4)} for i in range(layers)}
    zeros = jax.tree.map(jnp.zeros_like, weights)
    return {"params": weights, "mu": zeros, "nu": jax.tree.map(jnp.copy, zeros)}


def train(state: dict[str, Any], batch: Any) -> tuple[dict[str, Any], Any]:
    loss = jnp.mean(batch)
    return jax.tree.map(lambda x: 0.9 * x + loss, state), loss


def evaluate(state: dict[str, Any], batch: Any) -> Any:
    return sum(map(jnp.sum, jax.tree.leaves(state["params"]))) * jnp.mean(batch)


def timed(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of the calling thread of each function, called in turn."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(rounds + 4):
        for name, run in list(runs.items())[:: -1 if i % 2 else 1]:
            begin = time.thread_time()
            out = run()
            seconds = time.thread_time() - begin
            jax.block_until_ready(out)
            if i >= 4:
                times[name].append(seconds)
    return times


def compare(sizes: tuple[int, ...], function: Callable[..., Any], donate: bool) -> dict[str, Any]:
    """Medians of one step on a mesh, partitioned and under `jax.jit`."""
    devices = np.array(jax.devices()[: np.prod(sizes)]).reshape(sizes)
    mesh = jax.sharding.Mesh(devices, ("x", "y"))
    donated = {"donate_argnums": 0} if donate else {}
    schedule = [
        ps.ManualPartition({"batch": 0}, axis="x"),
        ps.ManualPartition({"state/params/**": 1}, axis="y"),
    ]
    step = ps.auto_partition(mesh, schedule=schedule, machine="tpu_v5e", **donated)(function)  # type: ignore[arg-type]
    state, batch = new_state(FLAGS.leaves), jnp.ones((16, 8, 4))
    plan = step.plan(state, batch)
    shardings = plan.in_shardings[0]
    jitted = jax.jit(function, in_shardings=shardings, out_shardings=plan.out_shardings, **donated)  # type: ignore[call-overload]
    batch = jax.device_put(batch, shardings[1])

    def runner(call: Callable[..., Any]) -> Callable[[], Any]:
        own = jax.device_put(jax.tree.map(jnp.copy, state), shardings[0])

        def run() -> Any:
            nonlocal own
            out = call(own, batch)
            if donate:
                own = out[0]
            return out

        return run

    calls: dict[str, Callable[..., Any]] = {"partitioned": step, "jit": jitted}
    times: dict[str, list[float]] = {name: [] for name in calls}
    ratios = []
    for names in (list(calls), list(calls)[::-1]):
        found = timed({name: runner(calls[name]) for name in names}, FLAGS.rounds)
        pairs = zip(found["partitioned"], found["jit"], strict=True)
        ratios.append(statistics.median(a / b for a, b in pairs))
        for name in names:
            times[name] += found[name]
    medians = {name: statistics.median(found) for name, found in times.items()}
    return {
        "step": function.__name__,
        "mesh": sizes,
        "leaves": len(jax.tree.leaves(state)),
        **{f"{name}_ms": round(m * 1e3, 2) for name, m in medians.items()},
        "ratio": round(statistics.geometric_mean(ratios), 3),
        "partitioned_first_last": [round(x, 3) for x in ratios],
        "jax": jax.__version__,
    }


def main(argv: list[str]) -> None:
    del argv
    for text in FLAGS.meshes:
        sizes = tuple(map(int, text.split("x")))
        for function, donate in ((train, True), (evaluate, False)):
            print(json.dumps(compare(sizes, function, donate)), flush=True)


if __name__ == "__main__":
    app.run(main)
