"""Compile time of the emitted step against `jax.jit` with the plan's shardings, in one run.

    python -m experiments.compile_time --models=llama-tiny,t5-tiny,unet-tiny --target=cpu

Compiles both programs in turn, `--rounds` times each, and prints CPU seconds (all threads of the
process) of tracing and lowering, and of XLA. `--target=tpu_v5e:2x4` compiles with libtpu, without
the hardware.
"""

from __future__ import annotations

import functools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from experiments.devices import use_cpu_devices

use_cpu_devices()

import jax  # noqa: E402  (the devices must be set before jax starts)
from absl import app, flags  # noqa: E402

import partir_search as ps  # noqa: E402
from experiments.verify import sizes  # noqa: E402
from models.catalog import MODELS  # noqa: E402

FLAGS = flags.FLAGS
flags.DEFINE_list("models", ["llama-tiny", "t5-tiny", "unet-tiny"], "Models of the catalog.")
flags.DEFINE_integer("rounds", 2, "Compilations of each program; the fewest seconds count.")
flags.DEFINE_string("only", "", "A known strategy by name; by default a search's plan.")


def seconds(lower: Callable[[], Any]) -> tuple[float, float]:
    """CPU seconds of tracing and lowering, and of XLA's compilation."""
    begin = time.process_time()
    lowered = lower()
    middle = time.process_time()
    lowered.compile()
    return middle - begin, time.process_time() - middle


def compare(name: str) -> dict[str, Any]:
    entry, shape = MODELS[name].resized(**sizes()), ps.MeshShape.parse(FLAGS.mesh)
    target = None if FLAGS.target == "cpu" else ps.Target.parse(FLAGS.target)
    if target is None:
        kinds = (jax.sharding.AxisType.Auto,) * len(shape.names)
        mesh = jax.make_mesh(shape.sizes, shape.names, axis_types=kinds)
    else:
        mesh = target.mesh(shape)
    step = ps.auto_partition(
        mesh,
        machine="tpu_v5e" if target is None else target.machine,
        episodes=FLAGS.episodes,
        seed=FLAGS.seed,
        donate_argnums=0,
    )(entry.step)
    args = entry.abstract_args(FLAGS.batch)
    plan = step.known_plans(*args)[FLAGS.only] if FLAGS.only else step.plan(*args)
    found: dict[str, list[tuple[float, float]]] = {"emitted": [], "jit": []}
    for _ in range(FLAGS.rounds):
        jax.clear_caches()
        replay = ps.auto_partition(mesh, schedule=plan, machine=plan.machine, donate_argnums=0)(
            entry.step
        )
        replay.plan(*args)
        found["emitted"].append(seconds(functools.partial(replay.lower, *args)))
        direct = jax.jit(
            entry.step,
            in_shardings=plan.in_shardings[0],
            out_shardings=plan.out_shardings,
            donate_argnums=0,
        )
        found["jit"].append(seconds(functools.partial(direct.lower, *args)))
    least = {k: [min(times) for times in zip(*rounds, strict=True)] for k, rounds in found.items()}
    return {
        "model": name,
        "target": FLAGS.target,
        "sizes": ",".join(FLAGS.sizes),
        "collectives": {k: n for k, n in plan.collective_counts.items() if n},
        **{f"{k}_lower_s": round(v[0], 2) for k, v in least.items()},
        **{f"{k}_xla_s": round(v[1], 2) for k, v in least.items()},
        "xla_ratio": round(least["emitted"][1] / least["jit"][1], 3),
        "spread": round(statistics.median(t[1] for t in found["jit"]) / least["jit"][1], 2),
        "jax": jax.__version__,
    }


def main(argv: list[str]) -> None:
    del argv
    for name in FLAGS.models:
        print(json.dumps(compare(name)), flush=True)


if __name__ == "__main__":
    app.run(main)
