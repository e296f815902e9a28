"""Partitioning in space alone and in space and time, side by side.

    python -m experiments.rings --models=opt-6.7b,llama2-70b --devices=8,32

Blocks of published models on a cluster of PrimePar's kind (ASPLOS 2024: nodes of 4 or 8 V100, fast
inside, one slow link out): seconds, seconds of exposed collectives and peak bytes under the best
plan with tile and sum loops only, under the best one that may use rings too, under P_{2x2} as
published (rings inside of nodes, data parallelism between them), and under the best mix of data and
tensor parallelism. Nothing is allocated and nothing runs; figures are the simulator's. Prints a
table and one JSON line per row. PrimePar reports 1.11 to 1.68 times the speed, 0.68 to 0.93 of the
peak memory and 0.199 to 0.622 of the collectives' seconds, against the last; inside of pipelines
1.46, 1.27 and 1.40 times the speed (OPT 175B, Llama 2 70B, BLOOM 176B; 32 devices).
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from absl import app, flags
from jax.sharding import AbstractMesh
from rich.console import Console
from rich.progress import track
from rich.table import Table

import partir_search as ps
from experiments import planning_flags
from models.catalog import MODELS

FLAGS = flags.FLAGS
NAMES = [f"opt-{n}" for n in ("6.7b", "13b", "30b", "66b", "175b")]
NAMES += ["llama2-7b", "llama2-13b", "llama2-70b", "bloom-7.1b", "bloom-176b"]
flags.DEFINE_list("models", NAMES, "Models of the catalog.")
flags.DEFINE_list("devices", ["4", "8", "16", "32"], "Devices in all.")
flags.DEFINE_integer("node", 4, "Devices of a node, 4 or 8.")
flags.DEFINE_integer("layers", 2, "Layers of each model.")
flags.DEFINE_integer("vocab", 1024, "Vocabulary: blocks are compared, not heads.")
flags.DEFINE_float("batch", 2.0, "Sequences on a device.")
flags.DEFINE_integer("stages", 1, "Stages of a pipeline, of one node or more each.")
flags.DEFINE_integer("microbatches", 8, "Microbatches of the pipeline.")
planning_flags.define(machine="v100", episodes=400, seed=0)
flags.DEFINE_float("outer_gb_per_s", 12.5, "A node's link out (100 Gb/s InfiniBand).")
_MIXED = re.compile(r"(PP\(stage\)\+)?(BP|MP)\([^)]*\)(\+MP\([^)]*\))?(\+SP)?")


def cluster(devices: int) -> tuple[AbstractMesh, ps.Machine]:
    """Stages of nodes of 2 x 2 or 2 x 2 x 2 devices, and what links them."""
    inner = {4: (2, 2), 8: (2, 2, 2)}[FLAGS.node]
    names = ("r", "c", "s")[: len(inner)]
    machine = ps.MACHINES[FLAGS.machine]
    nodes, rest = divmod(devices, FLAGS.node)
    if rest:
        raise app.UsageError(f"{devices} devices do not make nodes of {FLAGS.node}")
    of_stage, rest = divmod(nodes, FLAGS.stages)
    if rest:
        raise app.UsageError(f"{nodes} nodes do not make {FLAGS.stages} stages")
    outer = {"stage": FLAGS.stages, "node": of_stage}
    outer = {name: size for name, size in outer.items() if size > 1}
    for name in outer:
        machine = machine.with_axis(name, FLAGS.outer_gb_per_s * 1e9 / FLAGS.node, 5e-6)
    return AbstractMesh((*outer.values(), *inner), (*outer, *names)), machine


def cells(cost: ps.Cost) -> dict[str, float]:
    return {
        "ms": round(cost.seconds * 1e3, 2),
        "collective_ms": round(cost.collective_seconds * 1e3, 2),
        "gb": round(cost.peak_bytes / 1e9, 2),
    }


def _best(known: Mapping[str, ps.Cost], names: Iterable[str]) -> dict[str, Any]:
    """The fastest of these strategies."""
    name = min(names, key=lambda n: known[n].seconds)
    return {"plan": name, **cells(known[name])}


def row(name: str, devices: int) -> dict[str, Any]:
    entry = MODELS[name].resized(layers=FLAGS.layers, vocab=FLAGS.vocab)
    mesh, machine = cluster(devices)
    args = entry.abstract_args(max(1, int(FLAGS.batch * devices)))
    found: dict[str, Any] = {"model": name, "devices": devices, "stages": FLAGS.stages}
    schedule: list[ps.Tactic] = [ps.AutomaticPartition()]
    if FLAGS.stages > 1:
        schedule = [ps.Pipeline("stage", microbatches=FLAGS.microbatches), *schedule]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of plans that do not fit: the table shows them
        for title, in_time in (("spatial", False), ("rings", True)):
            step = ps.auto_partition(
                mesh,
                machine=machine,
                schedule=schedule,
                rings=in_time,
                remat=False,
                episodes=FLAGS.episodes,
                seed=FLAGS.seed,
                progress=False,
                donate_argnums=0,
            )(entry.step)
            plan = step.plan(*args)
            found[title] = cells(plan.cost)
            known = dict(plan.searches[0].known)
            if not in_time:
                found["mixed"] = _best(known, [n for n in known if _MIXED.fullmatch(n)])
            found[title]["sent_over_bound"] = round(plan.sent_bytes / max(plan.bound_bytes, 1), 2)
        rings = [n for n in known if re.search(r"\bP\(", n)]
        found["published"] = _best(known, rings)
        found["in_time"] = sorted({str(a.axis) for a in plan.actions if _in_time(a)})
    best = found["rings"]
    for end, other in (("", found["spatial"]), ("_over_mixed", found["mixed"])):
        found[f"speed{end}"] = round(other["ms"] / best["ms"], 3)
        found[f"memory{end}"] = round(best["gb"] / other["gb"], 3)
        waits = max(other["collective_ms"], 1e-9)
        found[f"latency{end}"] = round(best["collective_ms"] / waits, 3)
    return found


def _in_time(action: ps.Action) -> bool:
    return isinstance(action, ps.WindowedEinsum) or "~" in action.axis


def main(argv: list[str]) -> None:
    del argv
    rows = []
    for name in track(FLAGS.models, description="models", console=Console(stderr=True)):
        for devices in map(int, FLAGS.devices):
            rows.append(row(name, devices))
            print(json.dumps(rows[-1]), flush=True)
    table = Table(title=f"blocks of {FLAGS.layers} layers, nodes of {FLAGS.node} {FLAGS.machine}")
    for column in ("model", "devices", "spatial ms (collectives), GB", "in space and time"):
        table.add_column(column)
    for column in ("P_2x2 as published", "BP+MP", "speed", "memory", "collectives"):
        table.add_column(column, justify="right")
    for r in rows:
        shown = [f"{c['ms']} ({c['collective_ms']}), {c['gb']}" for c in (r["spatial"], r["rings"])]
        paper = f"{r['published']['ms']}, {r['published']['gb']}"
        mixed = f"{r['mixed']['ms']}, {r['mixed']['gb']}"
        names = ("speed", "memory", "latency")
        ratios = (f"{r[f'{name}_over_mixed']}, {r[name]}" for name in names)
        table.add_row(r["model"], str(r["devices"]), *shown, paper, mixed, *ratios)
    Console(width=160).print(table)


if __name__ == "__main__":
    app.run(main)
