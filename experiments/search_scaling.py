"""How planning scales with depth: seconds to trace, import, fold and search; peak memory.

    python -m experiments.search_scaling --layers=2,8,32 --mesh=batch:4,model:2

Plans a train step of Llama-8B-like widths on abstract shapes (nothing is allocated) and prints a
table and one JSON line per depth. Experts are the known strategies that every search evaluates.
"""

from __future__ import annotations

import json
import platform
import resource
import time
from typing import Any

import jax
from absl import app, flags
from jax.sharding import AbstractMesh
from rich.console import Console
from rich.table import Table

import partir_search as ps
from models.transformer import TransformerConfig, example_args, make_train_step, optimizer

FLAGS = flags.FLAGS
flags.DEFINE_list("layers", ["2", "8", "32"], "Depths.")
flags.DEFINE_string("mesh", "batch:4,model:2", "Mesh axes and sizes; no devices are needed.")
flags.DEFINE_string("machine", "tpu_v5e", "Machine to plan for.")
flags.DEFINE_integer("batch", 64, "Examples per step.")
flags.DEFINE_integer("seq", 512, "Tokens per example.")
flags.DEFINE_integer("episodes", 600, "Strategies that the search looks at.")
flags.DEFINE_integer("seed", 0, "Seed of the search.")


def run(layers: int) -> dict[str, Any]:
    """Plans one depth; returns a row."""
    config = TransformerConfig(
        layers=layers, d_model=4096, heads=32, d_ff=14336, vocab=32000, seq=FLAGS.seq
    )
    args = example_args(config, optimizer(), FLAGS.batch)
    step = jax.jit(make_train_step(config), donate_argnums=0)
    begin = time.perf_counter()
    step.trace(*args)
    traced = time.perf_counter() - begin
    shape = ps.MeshShape.parse(FLAGS.mesh)
    partitioned = ps.auto_partition(
        AbstractMesh(shape.sizes, shape.names),
        machine=FLAGS.machine,
        episodes=FLAGS.episodes,
        seed=FLAGS.seed,
        progress=False,
    )(step)
    begin = time.perf_counter()
    plan = partitioned.plan(*args)  # jax keeps the trace, so this is import, fold and search
    total = time.perf_counter() - begin
    (report,) = plan.searches
    limit = ps.MACHINES[FLAGS.machine].hbm_bytes

    def rank(cost: ps.Cost) -> tuple[float, float]:
        return max(1.0, cost.peak_bytes / limit), cost.seconds

    name, expert = min(report.experts, key=lambda e: rank(e[1]))
    return {
        "layers": layers,
        "ops": len(plan.module.ops),
        "trace_s": round(traced, 2),
        **{f"{k}_s": round(v, 2) for k, v in plan.seconds.items()},
        "plan_s": round(total, 2),
        "episodes": report.episodes,
        "states": report.states,
        "best_expert": name,
        "expert_ms": round(expert.seconds * 1e3, 2),
        "expert_gb": round(expert.peak_bytes / 1e9, 2),
        "found_ms": round(report.cost.seconds * 1e3, 2),
        "found_gb": round(report.cost.peak_bytes / 1e9, 2),
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "seed": FLAGS.seed,
        "mesh": FLAGS.mesh,
        "machine": FLAGS.machine,
        "jax": jax.__version__,
        "python": platform.python_version(),
    }


def main(argv: list[str]) -> None:
    del argv
    rows = [run(int(n)) for n in FLAGS.layers]
    hidden = ("seed", "mesh", "machine", "jax", "python")
    table = Table(title=f"planning on mesh<{FLAGS.mesh}>, {FLAGS.machine}", title_justify="left")
    for column in (c for c in rows[0] if c not in hidden):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(str(v) for k, v in row.items() if k not in hidden))
        print(json.dumps(row))
    Console(width=200).print(table)


if __name__ == "__main__":
    app.run(main)
