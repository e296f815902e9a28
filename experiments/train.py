"""Any model of the catalog, partitioned over CPU devices and on one device, step by step.

    python -m experiments.train --model=bert-tiny --mesh=batch:2,model:4 --plan=auto

`--plan` is auto or the name of a known strategy (`--plan=list` prints them). Prints tilings,
collectives and, after each step, the largest difference of all results. Exits with 1 when they
differ by more than rounding. Models at real sizes are for planning: see `experiments.verify`.
"""

from __future__ import annotations

import sys

from experiments.devices import use_cpu_devices

use_cpu_devices()

import jax  # noqa: E402  (the devices must be set before jax starts)
import numpy as np  # noqa: E402
from absl import app, flags  # noqa: E402
from rich.console import Console  # noqa: E402

import partir_search as ps  # noqa: E402
from experiments import planning_flags  # noqa: E402
from models.catalog import MODELS  # noqa: E402

FLAGS = flags.FLAGS
flags.DEFINE_enum("model", "gpt-tiny", sorted(MODELS), "Model and its named sizes.")
planning_flags.define(mesh="batch:2,model:4", machine="tpu_v5e", episodes=300, seed=0)
flags.DEFINE_string("plan", "auto", "auto, list, or a known strategy by name.")
flags.DEFINE_integer("batch", 8, "Examples per step.")
flags.DEFINE_integer("steps", 3, "Steps.")

TOLERANCE = 1e-3  # of a result's largest element


def difference(got: object, want: object) -> float:
    """Largest difference of two results' numbers, against each leaf's largest element."""
    worst = 0.0
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if jax.numpy.issubdtype(b.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        scale = max(float(np.abs(y).max(initial=0)), 1e-2)
        worst = max(worst, float(np.abs(x - y).max(initial=0)) / scale)
    return worst


def main(argv: list[str]) -> None:
    del argv
    console = Console(width=140)
    shape = ps.MeshShape.parse(FLAGS.mesh)
    mesh = jax.make_mesh(shape.sizes, shape.names)
    entry = MODELS[FLAGS.model]
    state, batch = jax.jit(lambda: entry.args(FLAGS.batch, FLAGS.seed))()
    options = {"machine": FLAGS.machine, "episodes": FLAGS.episodes, "seed": FLAGS.seed}
    partitioned = ps.auto_partition(mesh, progress=True, **options)(entry.step)
    if FLAGS.plan != "auto":
        known = partitioned.known_plans(state, batch)
        if FLAGS.plan not in known:
            for name, plan in sorted(known.items(), key=lambda item: item[1].cost.seconds):
                console.print(f"{name}: {plan.cost}", highlight=False)
            sys.exit(FLAGS.plan != "list")
        partitioned = ps.auto_partition(mesh, schedule=known[FLAGS.plan], **options)(entry.step)
    plan = partitioned.plan(state, batch)
    lowered = partitioned.lower(state, batch)
    console.print(ps.report.arguments_table(plan))
    if plan.searches:
        console.print(ps.report.strategies_table(plan))
    found = {"emitted (StableHLO)": ps.stablehlo_counts(lowered.as_text())}
    console.print(ps.report.collectives_table(plan, found))
    for prim, (n, where) in plan.opaque().items():
        console.print(f"no rule for {prim} ({n} uses, first at {where}): replicated")

    plain, worst = jax.jit(entry.step), 0.0
    for i in range(FLAGS.steps):
        got, want = jax.block_until_ready(partitioned(state, batch)), plain(state, batch)
        worst = max(worst, difference(got, want))
        console.print(f"step {i}: largest difference {worst:.1e}", highlight=False)
        if not isinstance(want, tuple):
            break  # decoding: no state to go on from
        state = jax.device_get(want[0])
    if not worst <= TOLERANCE:
        console.print(f"[bold red]results differ by {worst:.1e}, more than {TOLERANCE:.0e}")
        sys.exit(1)


if __name__ == "__main__":
    app.run(main)
