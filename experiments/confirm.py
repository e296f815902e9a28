"""Plans chosen by the compiler against finalists and hand-written shardings, by XLA:TPU's figures.

    python -m experiments.confirm --target=tpu_v5e:2x4 --rows=confirm.jsonl \
        --file=muon=cases/muon_lm.py --cases=muon

Each program is planned with `confirm=`: the search's plan and its finalists are compiled and
judged (`aot/judge.py`). FSDP and FSDP x TP under plain `jax.jit` (`experiments/hand_written.py`)
are compiled and judged beside them. Rows are added to a file; programs that are there already are
only shown.
"""

from __future__ import annotations

import json
import pathlib
import time
from typing import Any

import jax
from absl import app, flags
from jax.sharding import AbstractMesh
from rich.console import Console
from rich.table import Table

import partir_search as ps
from experiments import planning_flags
from experiments.cases import Program, names_of, program
from experiments.hand_written import hand_written
from partir_search.aot.compile_all import compile_all
from partir_search.aot.process import Compilation
from partir_search.planning.confirm.confirm import figures_of

FLAGS = flags.FLAGS
flags.DEFINE_list("cases", None, "Names of cases; default: all.")
flags.DEFINE_multi_string(
    "file", [], "A case of a file: NAME=PATH:KEYWORDS, griffin=cases/griffin.py:pattern='RARA'."
)
flags.DEFINE_string("target", "tpu_v5e:2x4", "Machine and topology.")
flags.DEFINE_string("rows", "confirm.jsonl", "File of JSON lines, read and added to.")
flags.DEFINE_list(
    "by_hand", ["fsdp", "fsdp largest", "fsdp x tp"], "Shardings of `hand_written` to compile."
)
flags.DEFINE_integer("compiles", 15, "Finalists compiled, at most.")
flags.DEFINE_integer("processes", None, "Compilations at a time; default: the number of CPUs.")
flags.DEFINE_float("seconds", 1800.0, "Wall seconds that a compilation may take.")
planning_flags.define(mesh="data:2,model:4", episodes=planning_flags.EPISODES, seed=0)


def confirmed(case: Program) -> ps.Plan:
    """Plan of a program, chosen by the compiler."""
    shape = ps.MeshShape.parse(FLAGS.mesh)
    step = ps.auto_partition(
        AbstractMesh(shape.sizes, shape.names),
        machine=ps.Target.parse(FLAGS.target).machine,
        episodes=FLAGS.episodes,
        seed=FLAGS.seed,
        donate_argnums=0,
        progress=True,
        confirm=ps.Confirm(
            target=FLAGS.target,
            compiles=FLAGS.compiles,
            processes=FLAGS.processes,
            seconds=FLAGS.seconds,
        ),
    )(case.step)
    return step.plan(*case.args)


def judged_by_hand(case: Program) -> dict[str, dict[str, Any]]:
    """Figures of hand-written shardings, by name."""
    target, shape = ps.Target.parse(FLAGS.target), ps.MeshShape.parse(FLAGS.mesh)
    mesh = target.mesh(shape)
    peers = hand_written(case, mesh)

    def starter(name: str) -> Any:
        return lambda: Compilation(*peers[name], target, mesh, cycles=True)

    names = [name for name in peers if name in FLAGS.by_hand]
    found = {}
    for at, outcome in compile_all(
        [starter(name) for name in names],
        seconds=FLAGS.seconds,
        limit=float("inf"),
        processes=FLAGS.processes,
        enough=lambda outcome: False,
    ):
        figures = figures_of(outcome, shape, target.machine, cycles=True)
        found[names[at]] = {
            "judged_seconds": figures.seconds,
            "compiled_peak_bytes": figures.peak_bytes,
            "note": figures.note,
        }
    return found


def row_of(name: str) -> dict[str, Any]:
    """Figures of a program."""
    case = program(name, FLAGS.file)
    begin = time.process_time()
    plan = confirmed(case)
    assert plan.confirmed is not None
    print(plan.confirmed, flush=True)
    return {
        "case": name,
        "target": FLAGS.target,
        "mesh": FLAGS.mesh,
        "episodes": FLAGS.episodes,
        "plan_cpu_seconds": round(time.process_time() - begin, 1),
        "confirmed": plan.confirmed.to_json(),
        "by_hand": judged_by_hand(case),
        "jax": jax.__version__,
    }


def summary(rows: list[dict[str, Any]]) -> Table:
    """Milliseconds by the judge: of the plan, of the search's plan, and of its rivals."""
    table = Table(title="confirmed plans, ms by the judge", title_justify="left")
    for column in (
        *("program", "target", "the search's plan", "finalists", "chosen", "best other finalist"),
        *("best FSDP by jit", "FSDP x TP by jit", "chosen over best", "peak MB chosen"),
    ):
        table.add_column(column, justify="right")
    for row in rows:
        finalists = row["confirmed"]["finalists"]
        chosen = next(each for each in finalists if each["chosen"])
        others = [f["judged_seconds"] for f in finalists if not f["chosen"] and f["judged_seconds"]]
        by_hand = {name: figures["judged_seconds"] for name, figures in row["by_hand"].items()}
        both = by_hand.pop("fsdp x tp", None)
        hand = [min(filter(None, by_hand.values()), default=None), both]
        rivals = [s for s in (*others, *hand) if s]
        table.add_row(
            *(row["case"], row["target"], _ms(finalists[0]["judged_seconds"])),
            *(str(len(finalists)), _ms(chosen["judged_seconds"]), _ms(min(others, default=None))),
            *map(_ms, hand),
            f"{chosen['judged_seconds'] / min(rivals):.3f}" if rivals else "-",
            f"{chosen['compiled_peak_bytes'] / 1e6:.0f}",
        )
    return table


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.2f}"


def main(argv: list[str]) -> None:
    del argv
    path = pathlib.Path(FLAGS.rows)
    lines = path.read_text().splitlines() if path.exists() else []
    rows = {(row["case"], row["target"]): row for row in map(json.loads, lines)}
    for name in FLAGS.cases or names_of(FLAGS.file):
        if (name, FLAGS.target) not in rows:
            rows[name, FLAGS.target] = row_of(name)
            with path.open("a") as file:
                file.write(json.dumps(rows[name, FLAGS.target]) + "\n")
    Console(width=180).print(summary(list(rows.values())))


if __name__ == "__main__":
    app.run(main)
