"""CPU seconds of planning a second batch size, relative to the first plan of the same function.

    python -m experiments.other_shapes --models=transformer-1b,nnx-1b --batches=64,48

Seconds of jax's own trace are measured on a second function and printed apart. Pace is seconds of
the step per example, relative to the first plan.
"""

from __future__ import annotations

import time
from typing import Any

import jax
from absl import app, flags
from jax.sharding import AbstractMesh
from rich.console import Console
from rich.table import Table

import partir_search as ps
from experiments import planning_flags
from models.catalog import MODELS

FLAGS = flags.FLAGS
flags.DEFINE_list(
    "models",
    ["transformer-1b", "nnx-1b", "gshard-10b", "t5-3b", "unet", "graph-net"],
    "Models of the catalog.",
)
flags.DEFINE_list("batches", ["64", "48"], "First and second batch size.")
planning_flags.define(mesh="data:4,model:2", machine="tpu_v5e")


def planned(step: Any, args: Any) -> tuple[ps.Plan, float]:
    """A plan and its CPU seconds."""
    begin = time.process_time()
    return step.plan(*args), time.process_time() - begin


def traced(fun: Any, args: Any) -> float:
    """CPU seconds of jax's trace of a function."""
    begin = time.process_time()
    (fun if hasattr(fun, "trace") else jax.jit(fun)).trace(*args)
    return time.process_time() - begin


def main(_: Any) -> None:
    first_batch, second_batch = map(int, FLAGS.batches)
    shape = ps.MeshShape.parse(FLAGS.mesh)
    mesh = AbstractMesh(shape.sizes, shape.names)
    table = Table("model", "first s", "second s", "trace s", "ratio", "without trace", "pace")
    for name in FLAGS.models:
        entry = MODELS[name]
        step = ps.auto_partition(mesh, machine=FLAGS.machine, progress=False)(entry.step)
        _, before = planned(step, entry.abstract_args(first_batch))
        second, after = planned(step, entry.abstract_args(second_batch))
        trace = traced(entry.step, entry.abstract_args(second_batch))
        net = (after - trace) / (before - trace)
        pace = second.basis.pace(second.cost.seconds) if second.basis else float("nan")
        figures = (f"{x:.2f}" for x in (before, after, trace, after / before, net, pace))
        table.add_row(name, *figures)
    Console().print(table)


if __name__ == "__main__":
    app.run(main)
