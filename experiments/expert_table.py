"""Found plans against the best known strategy: models of real size, machines and meshes.

    python -m experiments.expert_table --models=llama3-8b,t5-3b --machines=tpu_v5e,h100

Nothing is allocated and nothing runs; seconds and bytes are the simulator's. A plan that does not
fit is shown with its memory; where no known strategy fits, the fastest one that comes closest
stands there. Prints a table and one JSON line per row; exits with 1 if a found plan is behind.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

import jax
from absl import app, flags
from jax.sharding import AbstractMesh
from rich.console import Console
from rich.progress import track
from rich.table import Table

import partir_search as ps
from experiments import planning_flags
from models.catalog import MODELS

FLAGS = flags.FLAGS
PER_DEVICE = {  # examples on a device: without and with memory pressure on one machine or other
    "transformer-1b": (1, 8),
    "llama3-8b": (0.5, 2),
    "gshard-10b": (2, 8),
    "t5-3b": (4, 16),
    "unet": (4, 32),
    "graph-net": (0.25, 1),
    "gpt2-1.5b": (1, 8),
    "gpt3-13b": (0.5, 4),
    "bert-large": (16, 128),
    "opt-13b": (0.5, 4),
    "bloom-7.1b": (0.5, 4),
    "lora-opt-13b": (1, 4),
    "master-opt-13b": (0.5, 2),
    "nnx-1b": (1, 8),
    "nnx-scan-1b": (1, 8),
    "vit-h14": (8, 64),
    "mixer-l16": (32, 256),
    "resnet152": (32, 256),
    "ssm-370m": (2, 16),
    "lstm-2x1500": (32, 512),
    "dlrm-criteo": (1024, 32768),
    "it32": (4, 32),
    "it32-multiquery": (4, 32),
    "gan": (32, 1024),
    "ppo": (32, 1024),
    "ensemble": (32, 1024),
    "deep-linear": (32, 1024),
}
flags.DEFINE_list("models", list(PER_DEVICE), "Models of the catalog.")
flags.DEFINE_list("machines", ["tpu_v5e", "tpu_v5p", "h100"], "Machines.")
flags.DEFINE_list("meshes", ["2x4", "8x8", "16x16", "16x16x16"], "Meshes.")
flags.DEFINE_list("pressure", ["low", "high"], "Few or many examples on a device.")
planning_flags.define(episodes=planning_flags.EPISODES, seed=0)

AXES = ("data", "model", "third")


def row(name: str, machine: str, mesh: str, pressure: str) -> dict[str, Any]:
    sizes = tuple(int(n) for n in mesh.split("x"))
    shape = ps.MeshShape(AXES[: len(sizes)], sizes)
    entry = MODELS[name]
    least = getattr(entry.config, "microbatches", 1)
    batch = max(least, int(PER_DEVICE[name][pressure == "high"] * shape.devices))
    step = ps.auto_partition(
        AbstractMesh(shape.device_sizes, shape.device_names),
        machine=machine,
        episodes=FLAGS.episodes,
        seed=FLAGS.seed,
        progress=False,
        donate_argnums=0,
    )(jax.jit(entry.step, donate_argnums=0))
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of plans that do not fit: the table shows them
        plan = step.plan(*entry.abstract_args(batch))
    spent = time.process_time() - begin
    limit = ps.MACHINES[machine].hbm_bytes
    if plan.remat:  # the report is of the rewritten program; compare with the program as written
        known = [(n, p.cost) for n, p in step.known_plans(*entry.abstract_args(batch)).items()]
    else:
        known = list(plan.searches[0].known)
    best = min(known, key=lambda e: (max(1.0, e[1].peak_bytes / limit), e[1].seconds))
    found = plan.cost if plan.remat else plan.searches[0].cost
    return {
        "model": name,
        "machine": machine,
        "mesh": mesh,
        "batch": batch,
        "expert": best[0],
        "expert_ms": round(best[1].seconds * 1e3, 2),
        "expert_gb": round(best[1].peak_bytes / 1e9, 2),
        "expert_fits": best[1].peak_bytes <= limit,
        "found_ms": round(found.seconds * 1e3, 2),
        "found_gb": round(found.peak_bytes / 1e9, 2),
        "found_fits": found.peak_bytes <= limit,
        "remat": len(plan.remat),
        "above_bound": round(plan.bound.gap, 4) + 0.0 if plan.bound else None,
        "faster": round(best[1].seconds / found.seconds, 3),
        "plan_cpu_s": round(spent, 1),
    }


def behind(r: dict[str, Any]) -> bool:
    """Whether a known strategy fits and the found plan does not, or is slower."""
    return bool(r["expert_fits"] and (not r["found_fits"] or r["found_ms"] > r["expert_ms"]))


def main(argv: list[str]) -> None:
    del argv
    cases = [
        (name, machine, mesh, pressure)
        for name in FLAGS.models
        for mesh in FLAGS.meshes
        for pressure in FLAGS.pressure
        for machine in FLAGS.machines
    ]
    rows = []
    for case in track(cases, "planning"):
        rows.append(row(*case))
        print(json.dumps(rows[-1] | {"episodes": FLAGS.episodes, "seed": FLAGS.seed}), flush=True)
    table = Table(title="found plans against the best known strategy", title_justify="left")
    for column in rows[0]:
        table.add_column(column, justify="right")
    for r in rows:
        table.add_row(*map(str, r.values()), style="bold red" if behind(r) else None)
    Console(width=200).print(table)
    if any(map(behind, rows)):
        sys.exit(1)


if __name__ == "__main__":
    app.run(main)
