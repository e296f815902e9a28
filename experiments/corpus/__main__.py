"""Compiles generated programs for a target and checks the simulator's traits on them.

    python -m experiments.corpus --target=tpu_v5e:2x4 --seeds=0:24 --plans=1

Each seed is a train step (`experiments.corpus.programs`), compiled under known strategies. Rows
are kept in the file, with cycles of kernels and collectives; `--nocompile` predicts known rows
again. Programs of even seeds are the fitted half, of odd seeds the held-out half. Prints errors of
seconds and of peak memory, and for each trait of the simulator the errors without the trait and
with other values.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import app, flags
from rich.console import Console
from rich.progress import track
from rich.table import Table

import partir_search as ps
from experiments import planning_flags
from experiments.corpus.checks import Check, Example, check, errors_of, simulated_traits
from experiments.corpus.compiled import compiled_row, plans_of, read_rows, write_rows

FLAGS = flags.FLAGS
flags.DEFINE_string("target", "tpu_v5e:2x4", "Machine and topology to compile for.")
flags.DEFINE_string("seeds", "0:30", "First seed and end of the generated programs.")
flags.DEFINE_integer("plans", 2, "Plans of each program.")
flags.DEFINE_string("rows", "docs/corpus.jsonl.gz", "File of rows, read and written.")
flags.DEFINE_boolean("compile", True, "Compile what the file lacks.")
flags.DEFINE_boolean("traits", True, "Check the traits.")
planning_flags.define(mesh="data:2,model:4")


def collect(file: pathlib.Path) -> list[tuple[dict[str, Any], ps.Plan]]:
    """Rows of the target and their plans, compiled if wanted."""
    rows = read_rows(file)
    known = {(r["target"], r["seed"], r["plan"]): r for r in rows}
    first, end = map(int, FLAGS.seeds.split(":"))
    found: list[tuple[dict[str, Any], ps.Plan]] = []
    for seed in track(range(first, end), f"programs on {FLAGS.target}"):
        names = [name for target, s, name in known if (target, s) == (FLAGS.target, seed)]
        if not (names or FLAGS.compile):
            continue
        for name, plan in plans_of(seed, FLAGS.target, FLAGS.mesh, FLAGS.plans, names).items():
            key = FLAGS.target, seed, name
            if key not in known and FLAGS.compile:
                row = dict(zip(("target", "seed", "plan"), key, strict=True))
                rows.append(row | compiled_row(plan, FLAGS.target))
                known[key] = rows[-1]
                write_rows(file, rows)
            if key in known:
                found.append((known[key], plan))
    return found


def accuracy(found: Sequence[tuple[dict[str, Any], ps.Plan]]) -> Table:
    """Errors by half: of seconds and of peak memory."""
    table = Table(title=f"predicted and compiled for {FLAGS.target}", title_justify="left")
    for column in (
        *("half", "plans", "confirmed", "seconds ratio", "within 15 %", "median |error| of peaks"),
        *("within 10 %", "worst peak"),
    ):
        table.add_column(column, justify="right")
    for half, odd in (("fitted", 0), ("held out", 1)):
        pairs = [(row, plan) for row, plan in found if row["seed"] % 2 == odd]
        if not pairs:
            continue
        ratio = np.array([p.cost.seconds / r["judged_s"] for r, p in pairs])
        error = np.array([p.cost.peak_bytes / r["compiled_peak"] - 1 for r, p in pairs])
        table.add_row(
            half,
            str(len(pairs)),
            str(sum(r["confirmed"] for r, _ in pairs)),
            f"{ratio.min():.2f} {np.median(ratio):.2f} {ratio.max():.2f}",
            f"{np.mean(abs(ratio - 1) <= 0.15):.0%}",
            f"{np.median(abs(error)):.1%}",
            f"{np.mean(abs(error) <= 0.1):.0%}",
            f"{error[np.argmax(abs(error))]:+.1%}",
        )
    return table


def trait_table(checks: Sequence[Check]) -> Table:
    """Mean errors of seconds + peak by half: as it is, without, and with the best other value."""
    table = Table(title="mean |log error| of seconds + of peaks, fitted / held out")
    for column in ("trait", "value", "now", "without", "best other value", "errors", "verdict"):
        table.add_column(column)

    def told(each: Any) -> str:
        return "" if each is None else f"{each.fitted.total:.4f} / {each.held_out.total:.4f}"

    for each in checks:
        other, errors = each.best
        cells = each.name, str(each.value), told(each.now), told(each.errors_without)
        table.add_row(*cells, str(other), told(errors), each.verdict)
    return table


def main(_: Any) -> None:
    console = Console(width=200)
    found = collect(pathlib.Path(FLAGS.rows))
    console.print(accuracy(found))
    if not FLAGS.traits:
        return
    examples = [Example.of(plan, row) for row, plan in found]
    traits = ps.Target.parse(FLAGS.target).machine.traits
    now = errors_of(examples, traits)
    console.print(f"now: fitted {now.fitted}, held out {now.held_out}")
    fields = track(simulated_traits(), "traits")
    console.print(trait_table([check(examples, traits, field, now) for field in fields]))


if __name__ == "__main__":
    app.run(main)
