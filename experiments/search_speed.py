"""How long planning takes: real model sizes on real meshes, nothing allocated, no devices.

    python -m experiments.search_speed --rows=llama3-8b@4x2,llama3-405b@8x16x128

A row is a model of `models/llama.py` or of the catalog (or `depth-N`, N layers of a transformer)
and a mesh; a model of the catalog with its batch (`lstm-2x1500:256@2x4`), or a program of a file
(`--file=clip=cases/clip.py --rows=clip@2x4`).
Every row runs in a process of its own, so that its peak memory is its own. Prints a table and one
JSON line per row. `plan_s` is import, fold, search and costing; tracing (`trace_s`) is jax's.
Columns `cpu_` are CPU seconds of the process, and the ratio of planning to tracing.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import resource
import subprocess
import sys
import time
from typing import Any

import jax
from absl import app, flags
from jax.sharding import AbstractMesh
from rich.console import Console
from rich.progress import track
from rich.table import Table

import partir_search as ps
from experiments import planning_flags
from experiments.cases import program
from models import llama, transformer
from models.catalog import MODELS

FLAGS = flags.FLAGS
flags.DEFINE_list(
    "rows",
    [
        *("llama3-8b@4x2", "llama3-8b@8x8", "llama3-8b@2x4x8", "llama3-405b@8x16x128"),
        *("depth-10@16x16", "depth-100@16x16", "depth-1000@16x16"),
        *("unet@8x8", "graph-net@8x8", "gshard-10b@8x8", "t5-3b@8x8"),
    ],
    "Model@mesh.",
)
planning_flags.define(machine="tpu_v5p", episodes=planning_flags.EPISODES, seed=0)
flags.DEFINE_multi_string("file", [], "A program of a file: NAME=PATH:KEYWORDS.")
flags.DEFINE_integer("tokens", 2**18, "Tokens per step and 64 devices.")
flags.DEFINE_integer("seq", 0, "Tokens of an example of LLaMA; 0 for the published length.")
flags.DEFINE_boolean("own_remat", True, "LLaMA recomputes each layer.")
flags.DEFINE_boolean("limit", True, "Plans keep to the machine's memory.")
flags.DEFINE_boolean("here", False, "Run the only row in this process.")

AXES = ("data", "model", "third")
LIMITS = {  # seconds that the project promises, on two cores
    "llama3-8b@4x2": 3,
    "llama3-8b@8x8": 3,
    "llama3-8b@2x4x8": 6,
    "llama3-405b@8x16x128": 12,
    **dict.fromkeys(("unet@8x8", "graph-net@8x8", "gshard-10b@8x8", "t5-3b@8x8"), 15),
}
PER_DEVICE = {"unet": 8, "graph-net": 0.25, "gshard-10b": 4, "t5-3b": 8}  # examples on a device


def model(name: str, devices: int) -> tuple[Any, Any]:
    """A train step and its abstract arguments."""
    tokens = FLAGS.tokens * max(devices, 8) // 64
    if name.startswith("depth-"):
        shape = transformer.TransformerConfig(
            layers=int(name.removeprefix("depth-")),
            d_model=4096,
            heads=32,
            d_ff=16384,
            vocab=32000,
            seq=2048,
        )
        small = transformer.example_args(shape, transformer.optimizer(), tokens // 8192)
        return transformer.make_train_step(shape), small
    if name in {each.partition("=")[0] for each in FLAGS.file}:
        found = program(name, FLAGS.file)
        return found.step, found.args
    if ":" in name:
        entry, batch = MODELS[name.partition(":")[0]], int(name.partition(":")[2])
        return entry.step, entry.abstract_args(batch)
    if name in PER_DEVICE:
        entry = MODELS[name]
        return entry.step, entry.abstract_args(int(PER_DEVICE[name] * devices))
    config = llama.CONFIGS[name]
    config = dataclasses.replace(config, remat=FLAGS.own_remat, seq=FLAGS.seq or config.seq)
    args = llama.example_args(config, llama.optimizer(), tokens // config.seq)
    return llama.make_train_step(config), args


def run(row: str) -> dict[str, Any]:
    name, _, mesh = row.partition("@")
    sizes = tuple(int(n) for n in mesh.split("x"))
    shape = ps.MeshShape(AXES[: len(sizes)], sizes)
    fn, args = model(name, shape.devices)
    step = jax.jit(fn, donate_argnums=0)
    begin, cpu = time.perf_counter(), time.process_time()
    step.trace(*args)
    traced, cpu_traced = time.perf_counter() - begin, time.process_time() - cpu
    partitioned = ps.auto_partition(
        AbstractMesh(shape.sizes, shape.names),
        machine=FLAGS.machine,
        goals=None if FLAGS.limit else [ps.Fastest()],
        episodes=FLAGS.episodes,
        seed=FLAGS.seed,
        remat=False if name.startswith("depth-") else "auto",  # 1,000 layers fit nowhere without
        progress=False,
    )(step)
    begin, cpu = time.perf_counter(), time.process_time()
    plan = partitioned.plan(*args)  # jax keeps the trace
    total, cpu_total = time.perf_counter() - begin, time.process_time() - cpu
    (report,) = plan.searches
    limit = ps.MACHINES[FLAGS.machine].hbm_bytes
    known = min(report.known, key=lambda e: (max(1.0, e[1].peak_bytes / limit), e[1].seconds))
    phases = {k.replace("trace and ", ""): v for k, v in plan.seconds.items()}
    return {
        "row": row,
        "ops": len(plan.module.ops),
        "trace_s": round(traced, 2),
        **{f"{k}_s": round(v, 2) for k, v in phases.items()},
        "plan_s": round(total, 2),
        "cpu_trace_s": round(cpu_traced, 2),
        "cpu_plan_s": round(cpu_total, 2),
        "cpu_ratio": round(cpu_total / cpu_traced, 2),
        "limit_s": LIMITS.get(row, ""),
        "states": report.states,
        "expert": known[0],
        "expert_ms": round(known[1].seconds * 1e3, 1),
        "expert_gb": round(known[1].peak_bytes / 1e9, 1),
        "found_ms": round(report.cost.seconds * 1e3, 1),
        "found_gb": round(report.cost.peak_bytes / 1e9, 1),
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def apart(row: str) -> dict[str, Any]:
    """`run` in a fresh process."""
    command = [sys.executable, "-m", "experiments.search_speed", "--here", f"--rows={row}"]
    for flag in ("machine", "tokens", "seq", "own_remat", "limit", "episodes", "seed"):
        command.append(f"--{flag}={getattr(FLAGS, flag)}")
    command += [f"--file={each}" for each in FLAGS.file]
    out = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=True)
    found: dict[str, Any] = json.loads(out.stdout.strip().splitlines()[-1])
    return found


def main(argv: list[str]) -> None:
    del argv
    if FLAGS.here:
        print(json.dumps(run(FLAGS.rows[0])))
        return
    rows = [apart(row) for row in track(FLAGS.rows, "planning")]
    table = Table(title=f"planning for {FLAGS.machine}, seconds", title_justify="left")
    for column in rows[0]:
        table.add_column(column.removesuffix("_s"), justify="right")
    facts = {
        "machine": FLAGS.machine,
        "episodes": FLAGS.episodes,
        "seed": FLAGS.seed,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }
    for row in rows:
        table.add_row(*map(str, row.values()))
        print(json.dumps(row | facts))
    Console(width=220).print(table)


if __name__ == "__main__":
    app.run(main)
