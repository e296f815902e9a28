"""Plans of the search without exact steps and with them, judged by XLA:TPU's own figures.

    python -m experiments.exact_steps_judged --target=tpu_v5e:2x4 --rows=judged.jsonl

An optimiser finds what its model gets wrong. Four-layer programs are planned twice, compiled in
full and judged (`aot/judge.py`): seconds and peak memory, predicted and compiled. Rows are
added to a file, and what is there already is not compiled again. A case with a path reads a file
with `make(**sizes)`, which returns step, state and the other arguments' shapes.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import gzip
import importlib.util
import json
import pathlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from absl import app, flags
from jax.sharding import AbstractMesh
from rich.console import Console
from rich.table import Table

import partir_search as ps
from experiments import planning_flags
from models.catalog import MODELS
from partir_search.aot.judge import judge
from partir_search.planning import planner
from partir_search.planning.exact_steps import ExactAnswer

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

_BF16 = jnp.bfloat16
_SMALL = {"layers": 4, "d_model": 1024, "d_ff": 4096, "dtype": _BF16}
ZOO: dict[str, tuple[str, int, dict[str, Any]]] = {  # model, batch, sizes
    "transformer": ("transformer-1b", 32, _SMALL | {"heads": 8, "seq": 1024}),
    "mixture": ("gshard-10b", 32, _SMALL | {"heads": 16, "seq": 512, "experts": 16}),
    "dlrm": ("dlrm-criteo", 65536, {"rows": 500_000}),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """A step and its abstract arguments, the first donated."""

    step: Any
    args: tuple[Any, ...]


def program(name: str) -> Program:
    for case in FLAGS.file:
        label, _, rest = case.partition("=")
        if label == name:
            path, _, keywords = rest.partition(":")
            return _from_file(path, keywords)
    model, batch, sizes = ZOO[name]
    entry = MODELS[model].resized(**sizes)
    return Program(entry.step, entry.abstract_args(batch))


def _from_file(path: str, keywords: str) -> Program:
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"--file: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    call = ast.parse(f"make({keywords})", mode="eval").body
    assert isinstance(call, ast.Call)
    sizes = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    step, init, others = module.make(**sizes)
    return Program(step, (jax.eval_shape(init), *others))


def answers(case: Program) -> Iterator[tuple[str, ps.Plan]]:
    """The plans without exact steps and with them, of equal episodes and seed."""
    shape = ps.MeshShape.parse(FLAGS.mesh)
    off = mock.patch.object(planner, "exact_moves", return_value=ExactAnswer())
    for name, gate in (("without", off), ("with", contextlib.nullcontext())):
        with gate:
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
    for case in FLAGS.cases or [*ZOO, *(each.partition("=")[0] for each in FLAGS.file)]:
        for name, plan in answers(program(case)):
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
