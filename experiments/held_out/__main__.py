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
from typing import Any

import jax
from absl import app, flags
from rich.console import Console

import partir_search as ps
from experiments.held_out import PROGRAMS
from experiments.held_out.errors import faults, summary
from experiments.truth import rows_of

FLAGS = flags.FLAGS


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
