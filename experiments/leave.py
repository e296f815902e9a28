"""What XLA's partitioner makes of a plan's shardings: collectives of `plan.constrained()` under
plain `jax.jit` against those of the plan's own program.

    python -m experiments.leave --models=transformer-tiny,llama-tiny

Both are compiled for CPU devices; counts are of operands.
"""

from __future__ import annotations

from typing import Any

from experiments.devices import use_cpu_devices

use_cpu_devices()

import jax  # noqa: E402
from absl import app, flags  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

import partir_search as ps  # noqa: E402
from experiments import planning_flags  # noqa: E402
from models.catalog import MODELS  # noqa: E402

FLAGS = flags.FLAGS
flags.DEFINE_list("models", ["transformer-tiny", "llama-tiny", "gpt-scan-tiny"], "Models.")
flags.DEFINE_list(
    "plans",
    ["BP(batch)", "BP(batch)+MP(model)", "BP(batch)+MP(model)+SP", "BP(batch)+MP(model)+Z3"],
    "Known strategies by name.",
)
flags.DEFINE_integer("batch", 8, "Examples per step.")
planning_flags.define(mesh="batch:2,model:4")


def rows(name: str, mesh: Any) -> list[tuple[str, ...]]:
    entry = MODELS[name]
    args = entry.abstract_args(FLAGS.batch)
    known = ps.known_strategies(entry.step, mesh, *args, machine="tpu_v5e")
    found = []
    for title in FLAGS.plans:
        plan = known[title]
        step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=plan)(entry.step)
        own = ps.hlo_counts(step.lower(*args).compile().as_text() or "")
        wrapped = jax.jit(plan.constrained(), in_shardings=plan.in_shardings[0])
        left = ps.hlo_counts(wrapped.lower(*args).compile().as_text() or "")
        cells = (f"{own[k]} / {left[k]}" for k in own)
        found.append((name, title, *cells, f"{sum(own.values())} / {sum(left.values())}"))
    return found


def main(argv: list[str]) -> None:
    del argv
    shape = ps.MeshShape.parse(FLAGS.mesh)
    kinds = (jax.sharding.AxisType.Auto,) * len(shape.sizes)
    mesh = jax.make_mesh(shape.sizes, shape.names, axis_types=kinds)
    table = Table(title="collectives compiled: the plan's own program / XLA's partitioner")
    kinds_of = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "collective_permute")
    for column in ("model", "plan", *kinds_of, "all"):
        table.add_column(column)
    for name in FLAGS.models:
        for row in rows(name, mesh):
            table.add_row(*row)
            print("| " + " | ".join(row) + " |", flush=True)
    Console(width=160).print(table)


if __name__ == "__main__":
    app.run(main)
