r"""Compile time of the emitted step against `jax.jit` with the plan's shardings, in one run.

    python -m experiments.compile_time --models=llama-tiny,t5-tiny,unet-tiny --target=cpu

    python -m experiments.compile_time --models=llama3-8b --target=tpu_v5e:4x4 --batch=16 \
        --mesh=data:4,model:4 --programs=emitted,scanned --only='BP(data)+MP(model)+Z3' --rounds=1

Compiles the programs in turn, `--rounds` times each, and prints CPU seconds (all threads of the
process) of planning, of tracing and lowering, and of XLA, with the plan's simulated seconds and
bytes. `scanned` is the emitted step with `scan_layers=True`. `--target=tpu_v5e:2x4` compiles with
libtpu, without the hardware.
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
flags.DEFINE_list("programs", ["emitted", "jit"], "Of emitted, scanned and jit.")
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
    options: dict[str, Any] = {
        "machine": "tpu_v5e" if target is None else target.machine,
        "donate_argnums": 0,
        "on_overflow": "warn",
    }
    args = entry.abstract_args(FLAGS.batch)

    def planned(scan_layers: bool) -> tuple[ps.Plan, float]:
        """A plan, and the CPU seconds of planning."""
        begin = time.process_time()
        decorate = ps.auto_partition(
            mesh, episodes=FLAGS.episodes, seed=FLAGS.seed, scan_layers=scan_layers, **options
        )
        step = decorate(entry.step)
        plan = step.known_plans(*args)[FLAGS.only] if FLAGS.only else step.plan(*args)
        return plan, time.process_time() - begin

    programs = FLAGS.programs
    plans = {p: planned(p == "scanned") for p in programs if p != "jit"}
    found: dict[str, list[tuple[float, float]]] = {p: [] for p in programs}
    for _ in range(FLAGS.rounds):
        for name_of, (plan, _) in plans.items():
            jax.clear_caches()
            replay = ps.auto_partition(mesh, schedule=plan, **options)(entry.step)
            replay.plan(*args)
            found[name_of].append(seconds(functools.partial(replay.lower, *args)))
        if "jit" in programs:
            plan, _ = plans["emitted"]
            direct = jax.jit(
                entry.step,
                in_shardings=plan.in_shardings[0],
                out_shardings=plan.out_shardings,
                donate_argnums=0,
            )
            found["jit"].append(seconds(functools.partial(direct.lower, *args)))
    least = {k: [min(times) for times in zip(*rounds, strict=True)] for k, rounds in found.items()}
    base = least[programs[-1]][1]
    return {
        "model": name,
        "target": FLAGS.target,
        "sizes": ",".join(FLAGS.sizes),
        "collectives": {
            p: {k: n for k, n in plan.collective_counts.items() if n}
            for p, (plan, _) in plans.items()
        },
        "plan_s": {p: round(spent, 1) for p, (_, spent) in plans.items()},
        "step_ms": {p: round(plan.cost.seconds * 1e3, 2) for p, (plan, _) in plans.items()},
        "peak_gb": {p: round(plan.peak_bytes / 1e9, 2) for p, (plan, _) in plans.items()},
        "ops": {p: len(plan.module.ops) for p, (plan, _) in plans.items()},
        **{f"{k}_lower_s": round(v[0], 2) for k, v in least.items()},
        **{f"{k}_xla_s": round(v[1], 2) for k, v in least.items()},
        "xla_ratio": round(least[programs[0]][1] / base, 3),
        "spread": round(statistics.median(t[1] for t in found[programs[-1]]) / base, 2),
        "jax": jax.__version__,
    }


def main(argv: list[str]) -> None:
    del argv
    for name in FLAGS.models:
        print(json.dumps(compare(name)), flush=True)


if __name__ == "__main__":
    app.run(main)
