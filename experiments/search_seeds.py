"""Found plans by several seeds, with the bound, and without exact steps beside.

    python -m experiments.search_seeds --cases=transformer-1b:64:8x8:tpu_v5e --seeds=3

A case is MODEL:BATCH:MESH:MACHINE, with a memory limit in GB as a fifth part or none; programs of
files have no batch (`--file=griffin=cases/griffin.py:pattern='RARA' --cases=griffin::2x4:tpu_v5e`).
Nothing is allocated and nothing runs: seconds are the simulator's, of the whole program. Prints a
JSON line per plan and a table.
"""

from __future__ import annotations

import dataclasses
import json
import time
import warnings
from typing import Any

import jax
from absl import app, flags
from jax.sharding import AbstractMesh
from rich.console import Console
from rich.table import Table

import partir_search as ps
from experiments import planning_flags
from experiments.cases import Program, program
from experiments.exact_switch import exact_steps
from models.catalog import MODELS

DEMANDED = (
    "transformer-1b:64:8x8:tpu_v5e",
    "transformer-1b:16:4x4:tpu_v5e:12.2",
    "gshard-10b:256:8x8:tpu_v5e",
    "dlrm-criteo:65536:8x8:tpu_v5e",
    "llama3-8b:64:8x8:tpu_v5e",
)
AXES = ("data", "model", "third")

FLAGS = flags.FLAGS
flags.DEFINE_list("cases", list(DEMANDED), "MODEL:BATCH:MESH:MACHINE, or ...:GB.")
flags.DEFINE_multi_string("file", [], "A program of a file: NAME=PATH:KEYWORDS.")
flags.DEFINE_integer("seeds", 3, "Seeds, from 0 on.")
flags.DEFINE_boolean("without", False, "Plan without exact steps, too.")
planning_flags.define(episodes=planning_flags.EPISODES)


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A program, where it is planned for, and a limit in bytes or None."""

    name: str
    program: Program
    mesh: ps.MeshShape
    machine: str
    limit: float | None

    @classmethod
    def parse(cls, text: str) -> Case:
        name, batch, mesh, machine, *limit = text.split(":")
        sizes = tuple(map(int, mesh.split("x")))
        if batch:
            entry = MODELS[name]
            step = Program(jax.jit(entry.step, donate_argnums=0), entry.abstract_args(int(batch)))
        else:
            step = program(name, FLAGS.file)
        shape = ps.MeshShape(AXES[: len(sizes)], sizes)
        return cls(text, step, shape, machine, float(limit[0]) * 1e9 if limit else None)

    def plan(self, seed: int) -> ps.Plan:
        """The plan found from a seed."""
        goals: Any = None
        if self.limit is not None:
            goals = [ps.Fit(self.limit), ps.Fastest()]
        step = ps.auto_partition(
            AbstractMesh(self.mesh.sizes, self.mesh.names),
            machine=self.machine,
            goals=goals,
            episodes=FLAGS.episodes,
            seed=seed,
            donate_argnums=0,
            progress=False,
        )(self.program.step)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of plans that do not fit: the table shows them
            return step.plan(*self.program.args)


def row(case: Case, exact: bool, seed: int) -> dict[str, Any]:
    """Figures of a plan: milliseconds, GB, CPU seconds of tracing and planning."""
    begin = time.process_time()
    with exact_steps(exact):
        plan = case.plan(seed)
    spent = time.process_time() - begin
    known = [cost for search in plan.searches for _, cost in search.known]
    limit = case.limit or ps.MACHINES[case.machine].hbm_bytes
    fitting = [cost.seconds for cost in known if cost.peak_bytes <= limit]
    bound = plan.bound
    return {
        "case": case.name,
        "exact": exact,
        "seed": seed,
        "ms": round(plan.cost.seconds * 1e3, 3),
        "gb": round(plan.cost.peak_bytes / 1e9, 3),
        "fits": plan.cost.peak_bytes <= limit,
        "remat": len(plan.remat),
        "known_ms": round(min(fitting) * 1e3, 3) if fitting else None,
        "above_bound": round(bound.gap, 4) + 0.0 if bound else None,
        "nearness": bound.nearness if bound else "",
        "cpu_s": round(spent, 1),
        "jax": jax.__version__,
    }


def summary(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="found plans by seed", title_justify="left")
    for column in (
        *("case", "exact steps", "ms by seed", "spread", "of the best plan"),
        *("GB", "computed again", "known, ms", "CPU s"),
    ):
        table.add_column(column, justify="left" if column == "case" else "right")
    for key in dict.fromkeys((r["case"], r["exact"]) for r in rows):
        same = [r for r in rows if (r["case"], r["exact"]) == key]
        found = [r["ms"] for r in same]
        table.add_row(
            key[0],
            "with" if key[1] else "without",
            ", ".join(f"{ms:.2f}" for ms in found),
            f"{max(found) / min(found) - 1:.2%}",
            same[0]["nearness"],
            ", ".join(dict.fromkeys(f"{r['gb']:.2f}{'' if r['fits'] else '!'}" for r in same)),
            str(same[0]["remat"]),
            str(same[0]["known_ms"]),
            f"{sum(r['cpu_s'] for r in same) / len(same):.1f}",
        )
    return table


def main(argv: list[str]) -> None:
    del argv
    rows = []
    for case in map(Case.parse, FLAGS.cases):
        for exact in (True, False) if FLAGS.without else (True,):
            for seed in range(FLAGS.seeds):
                rows.append(row(case, exact, seed))
                print(json.dumps(rows[-1]), flush=True)
    Console(width=150).print(summary(rows))


if __name__ == "__main__":
    app.run(main)
