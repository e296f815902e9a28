"""Step time of the emitted program against `jax.jit` with the plan's shardings, in one run.

    python -m experiments.step_time --schedule=bp+mp+z3

Both programs compute the same step on 8 CPU devices; steps alternate, so that load on the machine
falls on both alike. Prints medians, their ratio (below 1: the emitted program is faster), and the
quartiles of the rounds' ratios.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

from experiments.devices import use_cpu_devices

use_cpu_devices()

import jax  # noqa: E402  (the devices must be set before jax starts)
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from absl import app, flags  # noqa: E402

import partir_search as ps  # noqa: E402
from experiments import planning_flags  # noqa: E402
from experiments.schedules import schedule  # noqa: E402
from models.transformer import (  # noqa: E402
    TransformerConfig,
    init_state,
    make_train_step,
    optimizer,
)

FLAGS = flags.FLAGS
planning_flags.define(mesh="batch:2,model:4")
flags.DEFINE_list("schedules", ["bp", "bp+mp", "bp+mp+z2", "bp+mp+z3", "auto"], "Schedules.")
flags.DEFINE_integer("layers", 4, "Transformer blocks.")
flags.DEFINE_integer("d_model", 256, "Width.")
flags.DEFINE_integer("steps", 24, "Steps timed of each program.")


def seconds_of(runs: dict[str, Any], steps: int) -> dict[str, list[float]]:
    """Seconds of each function, called in turn, each first in every other round."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(steps + 2):
        for name, run in list(runs.items())[:: -1 if i % 2 else 1]:
            begin = time.perf_counter()
            run()
            if i >= 2:
                times[name].append(time.perf_counter() - begin)
    return times


def compare(name: str) -> dict[str, Any]:
    config = TransformerConfig(
        layers=FLAGS.layers, d_model=FLAGS.d_model, heads=8, d_ff=4 * FLAGS.d_model, seq=128
    )
    shape = ps.MeshShape.parse(FLAGS.mesh)
    mesh = jax.make_mesh(
        shape.sizes, shape.names, axis_types=(jax.sharding.AxisType.Auto,) * len(shape.names)
    )
    train_step = make_train_step(config)
    step = ps.auto_partition(
        mesh, schedule=schedule(name), machine="tpu_v5e", episodes=400, donate_argnums=0
    )(train_step)
    state = jax.jit(lambda: init_state(config, optimizer()))()
    tokens = np.random.default_rng(0).integers(0, 256, (16, config.seq + 1)).astype(np.int32)
    args = (state, tokens, jax.random.key(0))
    plan = step.plan(*args)
    shardings = plan.in_shardings[0]
    direct = jax.jit(
        train_step,
        in_shardings=shardings,
        out_shardings=plan.out_shardings,
        donate_argnums=0,
    )
    states = {
        name: jax.device_put(jax.tree.map(jnp.copy, state), shardings[0])
        for name in ("emitted", "jit")
    }
    rest = jax.device_put(args[1:], shardings[1:])

    def runner(key: str, function: Any) -> Any:
        def run() -> None:
            states[key], loss = function(states[key], *rest)
            jax.block_until_ready((states[key], loss))

        return run

    times = seconds_of(
        {"emitted": runner("emitted", step), "jit": runner("jit", direct)}, FLAGS.steps
    )
    medians = {key: statistics.median(t) for key, t in times.items()}
    pairs = [a / b for a, b in zip(times["emitted"], times["jit"], strict=True)]
    low, middle, high = statistics.quantiles(pairs, n=4)
    return {
        "schedule": name,
        "emitted_ms": round(medians["emitted"] * 1e3, 1),
        "jit_ms": round(medians["jit"] * 1e3, 1),
        "ratio": round(medians["emitted"] / medians["jit"], 3),
        "paired": [round(x, 3) for x in (low, middle, high)],
        "jax": jax.__version__,
    }


def main(argv: list[str]) -> None:
    del argv
    for name in FLAGS.schedules:
        print(json.dumps(compare(name)), flush=True)


if __name__ == "__main__":
    app.run(main)
