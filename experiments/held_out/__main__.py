"""Predictions against XLA:TPU on programs that no rule was found on: memory and collectives.

    python -m experiments.held_out --targets=tpu_v5e:2x4 --plans=4 --rows=held_out.jsonl

For each program the found plan and known strategies, spread evenly from the fastest to the slowest,
are compiled up to the buffer assignment (2 to 30 CPU seconds each; `experiments.truth` has the
rows and the flags). Prints per program and in total the errors of peak memory above 200 MB, and the
plans with all collectives as predicted; then the plans beyond 20 % and the collectives at fault.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from absl import app, flags
from rich.console import Console
from rich.table import Table

import partir_search as ps
from experiments.truth import rows_of

FLAGS = flags.FLAGS
PROGRAMS = (
    *("conformer", "graph_attention", "perceiver", "routed_lm", "soft_caps_lm", "ssd_lm"),
    *("two_tower", "wavenet"),
)
LEAST_PEAK_BYTES = 200e6


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """A module of `experiments.held_out`."""

    name: str

    def partitioned(self, mesh: Any, machine: str, schedule: Any = None) -> tuple[Any, Any]:
        """The partitioned step and its abstract arguments, as `experiments.truth.Case`."""
        step, init, batch = importlib.import_module(f"experiments.held_out.{self.name}").make()
        decorate = ps.auto_partition(
            mesh, schedule=schedule, machine=machine, donate_argnums=0, progress=False
        )
        return decorate(step), (jax.eval_shape(init), *batch)


def errors_of(rows: Sequence[dict[str, Any]]) -> Any:
    """[rows] predicted over compiled peaks, minus 1, of the programs above 200 MB."""
    large = [r for r in rows if r["compiled_peak"] > LEAST_PEAK_BYTES]
    return np.array([r["predicted_peak"] / r["compiled_peak"] - 1 for r in large])


def summary(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="programs that no rule was found on", title_justify="left")
    head = ("target", "program", "plans", "confirmed", "peak GB", "median |error|", "worst")
    for column in (*head, "within 10 %"):
        table.add_column(column, justify="right")

    def add(target: str, program: str, held: Sequence[dict[str, Any]]) -> None:
        error, peaks = errors_of(held), [r["compiled_peak"] / 1e9 for r in held]
        told = ("-", "-", "-")
        if len(error):
            worst = f"{error[np.argmax(abs(error))]:+.1%}"
            told = f"{np.median(abs(error)):.1%}", worst, f"{np.mean(abs(error) <= 0.1):.0%}"
        confirmed = str(sum(r["confirmed"] for r in held))
        peak = f"{min(peaks):.2f}..{max(peaks):.2f}"
        table.add_row(target, program, str(len(held)), confirmed, peak, *told)

    for target in dict.fromkeys(r["target"] for r in rows):
        of_target = [r for r in rows if r["target"] == target]
        for program in dict.fromkeys(r["model"] for r in of_target):
            add(target, program, [r for r in of_target if r["model"] == program])
        add(target, "all", of_target)
    return table


def faults(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines about plans beyond 20 % or with collectives that were not predicted."""
    found = []
    for r in rows:
        error = r["predicted_peak"] / r["compiled_peak"] - 1
        if r["compiled_peak"] > LEAST_PEAK_BYTES and abs(error) > 0.2:
            found.append(
                f"{r['model']}, {r['plan']}: {r['compiled_peak'] / 1e9:.2f} GB {error:+.1%}"
            )
        found += [f"{r['model']}, {r['plan']}: {line}" for line in r["unexplained"]]
    return found


def main(argv: list[str]) -> None:
    del argv
    rows = rows_of({name: HeldOut(name) for name in PROGRAMS}, cycles=False)
    console = Console(width=140)
    console.print(summary(rows))
    for line in faults(rows):
        console.print(line, highlight=False)


if __name__ == "__main__":
    FLAGS.set_default("targets", ["tpu_v5e:2x4"])
    FLAGS.set_default("plans", 4)
    FLAGS.set_default("rows", "held_out.jsonl")
    app.run(main)
