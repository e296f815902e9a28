"""Plans of the search without exact steps and with them, judged by XLA:TPU's own figures.

    python -m experiments.exact_steps_judged --target=tpu_v5e:2x4 --rows=judged.jsonl

An optimiser finds what its model gets wrong. Four-layer programs are planned twice, compiled in
full and judged (`aot/judge.py`): seconds and peak memory, predicted and compiled. Rows are
added to a file, and what is there already is not compiled again. A case with a path reads a file
with `make(**sizes)`, which returns step, state and the other arguments' shapes.
"""

from __future__ import annotations

import gzip
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
from absl import app, flags
from jax.sharding import AbstractMesh
from rich.console import Console
from rich.table import Table

import partir_search as ps
from experiments import planning_flags
from experiments.cases import Program, names_of, program
from experiments.exact_switch import exact_steps
from partir_search.aot.judge import judge

FLAGS = flags.FLAGS
flags.DEFINE_list("cases", None, "Names of cases to compare; default: all of the zoo.")
flags.DEFINE_multi_string(
    "file", [], "A case of a file: NAME=PATH:KEYWORDS, griffin=cases/griffin.py:pattern='RARA'."
)
flags.DEFINE_string("target", "tpu_v5e:2x4", "Machine and topology.")
flags.DEFINE_string("rows", "judged.jsonl", "File of JSON lines, read and added to.")
flags.DEFINE_string("hlo", None, "Folder that keeps compiled programs.")
flags.DEFINE_boolean("compile", True, "Compile what the file lacks; else only plan.")
planning_flags.define(mesh="data:2,model:4", episodes=planning_flags.EPISODES, seed=0)


def answers(case: Program) -> Iterator[tuple[str, ps.Plan]]:
    """The plans without exact steps and with them, of equal episodes and seed."""
    shape = ps.MeshShape.parse(FLAGS.mesh)
    for name, on in (("without", False), ("with", True)):
        with exact_steps(on):
            step = ps.auto_partition(
                AbstractMesh(shape.sizes, shape.names),
                machine=ps.Target.parse(FLAGS.target).machine,
                episodes=FLAGS.episodes,
                seed=FLAGS.seed,
                donate_argnums=0,
                progress=False,
            )(case.step)
            yield name, step.plan(*case.args)


def judged(plan: ps.Plan, name: str) -> dict[str, Any]:
    """Compiled figures of a plan."""
    target = ps.Target.parse(FLAGS.target)
    found = plan.verify(FLAGS.target, cycles=True)
    if FLAGS.hlo:
        file = pathlib.Path(FLAGS.hlo) / f"{name}.hlo.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(found.hlo.encode()))
    seconds = judge(found.hlo, plan.program.partition.mesh, target.machine)
    return {
        "judged_s": seconds.total,
        "judged_compute_s": seconds.compute,
        "compiled_peak": found.peak_bytes[1],
        "confirmed": found.confirmed,
        "unexplained": found.unexplained,
        "compile_s": round(found.compile_seconds, 1),
        "jax": jax.__version__,
    }


def summary(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="exact steps, judged", title_justify="left")
    for column in (
        *("program", "exact steps", "ms predicted", "ms judged", "compute predicted", "judged"),
        *("peak MB predicted", "compiled", "confirmed"),
    ):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            *(row["case"], row["exact_steps"]),
            *(f"{row[k] * 1e3:.2f}" for k in ("predicted_s", "judged_s")),
            *(f"{row[k] * 1e3:.2f}" for k in ("predicted_compute_s", "judged_compute_s")),
            *(f"{row[k] / 1e6:.0f}" for k in ("predicted_peak", "compiled_peak")),
            str(row["confirmed"]),
        )
    return table


def main(argv: list[str]) -> None:
    del argv
    path = pathlib.Path(FLAGS.rows)
    lines = path.read_text().splitlines() if path.exists() else []
    known = {(r["case"], r["target"], r["plan_actions"]): r for r in map(json.loads, lines)}
    rows = []
    for case in FLAGS.cases or names_of(FLAGS.file):
        for name, plan in answers(program(case, FLAGS.file)):
            actions = json.dumps(plan.to_json()["actions"])
            row: dict[str, Any] = {
                "case": case,
                "target": FLAGS.target,
                "exact_steps": name,
                "plan_actions": actions,
                "predicted_s": plan.cost.seconds,
                "predicted_compute_s": plan.cost.compute_seconds,
                "predicted_peak": plan.cost.peak_bytes,
            }
            print(case, name, plan, flush=True)
            old = known.get((case, FLAGS.target, actions))
            if old is not None:
                rows.append(old | row)
            elif FLAGS.compile:
                rows.append(row | judged(plan, f"{case}_{name}"))
                with path.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                known[case, FLAGS.target, actions] = rows[-1]
    if rows:
        Console(width=160).print(summary(rows))


if __name__ == "__main__":
    app.run(main)
