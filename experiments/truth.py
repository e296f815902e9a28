"""Predictions against XLA:TPU: peak memory and seconds of many plans of several models.

    python -m experiments.truth --targets=tpu_v5e:2x4 --plans=12 --rows=rows.jsonl

For each model and target the known strategies and the found plan are taken, spread evenly from the
fastest to the slowest, and compiled ahead of time (half a minute each). Prints per model the
errors of peak memory, the rank correlation of seconds with the judge (`aot/judge.py`) and
their ratio. Rows are added to a file; what is compiled there already is only predicted again. With
--nocompile the actions of each row are replayed, and rows whose actions no longer hold are named.

    python -m experiments.truth --measure --mesh=data:4,model:2 --profile=here.json

runs plans as whole steps on the devices at hand, here 8 CPU devices, and compares them with
predictions by a profile of the machine (`experiments.measured_truth`, `experiments.calibrate`).
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.devices import use_cpu_devices

if any(arg in ("--measure", "--measure=true") for arg in sys.argv):
    use_cpu_devices(default_mesh="data:4,model:2")

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax.sharding import AbstractMesh
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import spearmanr

import partir_search as ps
from experiments import measured_truth, planning_flags
from experiments.pinned_plans import PinnedPlans, skipped
from models.catalog import MODELS
from partir_search.aot.judge import judge

FLAGS = flags.FLAGS
flags.DEFINE_list("models", None, "Cases to compile; default: all.")
flags.DEFINE_list("targets", ["tpu_v5e:2x4", "tpu_v5p:2x2x2"], "Machines and topologies.")
flags.DEFINE_integer("plans", 12, "Plans of each model on each target.")
planning_flags.define(mesh="data:2,model:4")
flags.DEFINE_string("rows", "rows.jsonl", "File of JSON lines, read and written.")
flags.DEFINE_string("hlo", None, "Folder that keeps compiled programs, to be judged again.")
flags.DEFINE_boolean(
    "compile", True, "Compile what the file lacks; else only predict its rows again."
)
flags.DEFINE_boolean("measure", False, "Run plans here instead of compiling them.")
flags.DEFINE_string("profile", "here.json", "File of the profile, with --measure.")
flags.DEFINE_integer("runs", 10, "Timed runs, with --measure.")


@dataclasses.dataclass(frozen=True)
class Case:
    """A model of the catalog, resized, and its batch."""

    model: str
    batch: int
    sizes: dict[str, Any]

    def partitioned(
        self, mesh: Any, machine: str, schedule: Any = None
    ) -> tuple[Any, tuple[Any, Any]]:
        entry = MODELS[self.model].resized(**self.sizes)
        step = ps.auto_partition(
            mesh, schedule=schedule, machine=machine, donate_argnums=0, progress=False
        )(entry.step)
        return step, entry.abstract_args(self.batch)


_BF16 = jnp.bfloat16
_LLAMA = {"layers": 1, "d_model": 1024, "heads": 16, "kv_heads": 8, "d_ff": 3584, "vocab": 32000}
CASES = {
    "transformer": Case(
        "transformer-1b",
        64,
        {"layers": 1, "d_model": 1024, "heads": 8, "d_ff": 4096, "seq": 512, "dtype": _BF16},
    ),
    "llama": Case("llama3-8b", 32, _LLAMA | {"seq": 1024}),
    "t5": Case("t5-large", 64, {"layers": 1}),
    "moe": Case("gshard-10b", 32, {"layers": 2, "d_ff": 4096, "experts": 16, "seq": 512}),
    "unet": Case("unet", 256, {"image": 32, "channels": 128, "multipliers": (1,), "blocks": 1}),
    "graph-net": Case("graph-net", 8, {"steps": 1, "mlp_layers": 3}),
}


def plans_of(
    case: Any, target: str, n: int, found: str | None = None
) -> Iterator[tuple[str, ps.Plan]]:
    """The found plan and known ones, unlike in cost and not too large, from fast to slow.

    Args:
      case: with `partitioned`, as `Case`.
      found: actions of the plan that was found, and compiled, before.
    """
    mesh, machine = _mesh(), ps.Target.parse(target).machine
    step, args = case.partitioned(mesh, machine.name)
    if found:
        yield "found", PinnedPlans(case, mesh, machine.name).plan(json.loads(found))
    else:
        yield "found", step.plan(*args)
    unlike: dict[tuple[float, float], tuple[str, ps.Plan]] = {}
    for name, plan in step.known_plans(*args).items():
        if plan.cost.peak_bytes < machine.hbm_bytes:
            key = (round(plan.cost.seconds, 6), round(plan.cost.peak_bytes / 1e6))
            unlike.setdefault(key, (name, plan))
    ranked = [unlike[key] for key in sorted(unlike)]
    chosen = np.linspace(0, len(ranked) - 1, min(n - 1, len(ranked))).round().astype(int)
    yield from (ranked[i] for i in dict.fromkeys(chosen.tolist()))


def _mesh() -> AbstractMesh:
    shape = ps.MeshShape.parse(FLAGS.mesh)
    return AbstractMesh(shape.sizes, shape.names)


def row_of(
    plan: ps.Plan, target: str, model: str, known: dict[str, Any], *, cycles: bool = True
) -> dict[str, Any]:
    """Predicted figures, and compiled ones unless they are known.

    Args:
      cycles: compile in full and judge; else memory and collectives alone.
    """
    row: dict[str, Any] = {
        "predicted_peak": plan.cost.peak_bytes,
        "predicted_s": plan.cost.seconds,
        "predicted_compute_s": plan.cost.compute_seconds,
        "predicted_flops": plan.cost.flops,
    }
    machine = ps.Target.parse(target).machine
    if known and json.loads(known["plan_actions"]) == plan.to_json()["actions"]:
        if cycles and FLAGS.hlo and _kept(target, model, known).exists():
            text = gzip.decompress(_kept(target, model, known).read_bytes()).decode()
            row |= _judged(text, plan, machine)
        return known | row
    found = plan.verify(target, cycles=cycles)
    row |= {
        "plan_actions": _actions(plan),
        "compiled_peak": found.peak_bytes[1],
        "compiled_flops": found.flops[1],
        "confirmed": found.confirmed,
        "unexplained": list(found.unexplained),
        "compile_s": round(found.compile_seconds, 1),
        "jax": jax.__version__,
    }
    if FLAGS.hlo:
        file = _kept(target, model, row)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(found.hlo.encode()))
    return row | _judged(found.hlo, plan, machine) if cycles else row


def _judged(text: str, plan: ps.Plan, machine: ps.Machine) -> dict[str, float]:
    seconds = judge(text, plan.program.partition.mesh, machine)
    return {"judged_s": seconds.total, "judged_compute_s": seconds.compute}


def _kept(target: str, model: str, row: dict[str, Any]) -> pathlib.Path:
    """Where the compiled program of a row is kept."""
    digest = hashlib.sha256((target + model + row["plan_actions"]).encode()).hexdigest()[:16]
    return pathlib.Path(FLAGS.hlo) / f"{digest}.hlo.gz"


def _actions(plan: ps.Plan) -> str:
    return json.dumps(plan.to_json()["actions"])


def summary(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="predicted against the compiler", title_justify="left")
    for column in (
        *("target", "model", "plans", "confirmed", "peak GB", "median |error|", "worst error"),
        *("rank correlation", "seconds ratio", "compute ratio"),
    ):
        table.add_column(column, justify="right")
    for target, model in dict.fromkeys((r["target"], r["model"]) for r in rows):
        held = [r for r in rows if (r["target"], r["model"]) == (target, model)]
        error = np.array([r["predicted_peak"] / r["compiled_peak"] - 1 for r in held])
        ratio = np.array([r["predicted_s"] / r["judged_s"] for r in held])
        compute = np.array([r["predicted_compute_s"] / r["judged_compute_s"] for r in held])
        rank = spearmanr([r["predicted_s"] for r in held], [r["judged_s"] for r in held])
        peaks = [r["compiled_peak"] / 1e9 for r in held]
        table.add_row(
            *(target, model, str(len(held)), str(sum(r["confirmed"] for r in held))),
            f"{min(peaks):.2f}..{max(peaks):.2f}",
            f"{np.median(abs(error)):.1%}",
            f"{error[np.argmax(abs(error))]:+.1%}",
            f"{rank.statistic:.3f}",
            f"{ratio.min():.2f}..{ratio.max():.2f}",
            f"{compute.min():.2f}..{compute.max():.2f}",
        )
    return table


def rows_of(cases: Mapping[str, Any], *, cycles: bool = True) -> list[dict[str, Any]]:
    """Rows of all plans of some cases, by the flags; the file of rows keeps the latest of each."""
    path = pathlib.Path(FLAGS.rows)
    old = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known = {(r["target"], r["model"], r["plan"]): r for r in old}
    rows = dict(known)
    reasons: dict[tuple[str, str, str], str] = {}
    for target in FLAGS.targets:
        for model in FLAGS.models or cases:
            held = {p: r for (t, m, p), r in known.items() if (t, m) == (target, model)}
            if FLAGS.compile:
                found = held.get("found", {}).get("plan_actions")
                plans = list(plans_of(cases[model], target, FLAGS.plans, found))
            else:
                plans, left = _again(cases[model], target, held)
                reasons |= {(target, model, plan): reason for plan, reason in left.items()}
            for name, plan in track(plans, f"{model} on {target}"):
                key = (target, model, name)
                row = row_of(plan, target, model, known.get(key, {}), cycles=cycles)
                rows[key] = {"target": target, "model": model, "plan": name} | row
                path.write_text("".join(json.dumps(held) + "\n" for held in rows.values()))
    for line in skipped(reasons):
        print(line)
    wanted = FLAGS.models or cases
    return [r for r in rows.values() if r["target"] in FLAGS.targets and r["model"] in wanted]


def _again(
    case: Any, target: str, rows: Mapping[str, dict[str, Any]]
) -> tuple[list[tuple[str, ps.Plan]], dict[str, str]]:
    """Plans of rows by their actions, and why the others have none, by name of the plan."""
    plans, left = [], {}
    pinned = PinnedPlans(case, _mesh(), ps.Target.parse(target).machine.name)
    for name, row in track(rows.items(), f"plans on {target}"):
        try:
            plans.append((name, pinned.plan(json.loads(row["plan_actions"]))))
        except ValueError as error:
            left[name] = str(error)
    return plans, left


def main(argv: list[str]) -> None:
    del argv
    if FLAGS.measure:
        cases = FLAGS.models or measured_truth.CASES
        measured_truth.run(FLAGS.mesh, FLAGS.profile, list(cases), FLAGS.plans, FLAGS.runs)
        return
    Console(width=160).print(summary(rows_of(CASES)))


if __name__ == "__main__":
    app.run(main)
