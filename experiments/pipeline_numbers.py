"""Pipelines of given numbers, planned at published sizes.

    python -m experiments.pipeline_numbers --model=llama3-405b --layers=128 --sequences=2048 \
        --mesh=stage:16,data:64,model:8 --numbers=32x8,32x8s,32x4
    python -m experiments.pipeline_numbers --model=opt-175b --sequences=256 \
        --mesh=node:16,model:8 --numbers=chosen

Microbatches and chunks, with a split backward pass after an "s": one plan each, with
`ps.Pipeline` on the axis `stage` and all else searched. The last axis lies inside of nodes, the
axes before between nodes. `chosen` leaves the axis and all numbers to `ps.Pipeline()`, and the
step without a pipeline is a candidate. Prints seconds, exposed collectives and peak bytes, one
JSON line per plan. Nothing is allocated and nothing runs.
"""

from __future__ import annotations

import json
import re
import time
import warnings
from typing import Any

import jax
from absl import app, flags
from jax.sharding import AbstractMesh

import partir_search as ps
from experiments import planning_flags
from models.catalog import MODELS

FLAGS = flags.FLAGS
flags.DEFINE_string("model", "llama3-405b", "Model of the catalog.")
flags.DEFINE_integer("layers", 0, "Layers; 0 for the published number.")
flags.DEFINE_integer("sequences", 2048, "Sequences of a step.")
flags.DEFINE_list("numbers", ["32x8"], "Microbatches x chunks, an s after for a split; or chosen.")
planning_flags.define(mesh="stage:16,data:64,model:8", machine="h100", episodes=50, seed=0)

_NUMBERS = re.compile(r"(\d+)x(\d+)(s?)")


def row_of(numbers: str) -> dict[str, Any]:
    """Figures of the plan with given numbers.

    Raises:
      ValueError: `numbers` is neither microbatches x chunks nor `chosen`.
    """
    mesh = ps.MeshShape.parse(FLAGS.mesh)
    entry = MODELS[FLAGS.model].resized(**({"layers": FLAGS.layers} if FLAGS.layers else {}))
    begin = time.process_time()
    plan = ps.auto_partition(
        AbstractMesh(mesh.sizes, mesh.names),
        machine=ps.MACHINES[FLAGS.machine].across_hosts(*mesh.names[:-1]),
        schedule=[_tactic(numbers), ps.AutomaticPartition()],
        episodes=FLAGS.episodes,
        seed=FLAGS.seed,
        progress=False,
        on_overflow="warn",
    )(jax.jit(entry.step, donate_argnums=0)).plan(*entry.abstract_args(FLAGS.sequences))
    return {
        "model": FLAGS.model,
        "mesh": FLAGS.mesh,
        "pipeline": str(plan.pipeline),
        "microbatches": plan.microbatches,
        "s": round(plan.cost.seconds, 4),
        "exposed_s": round(plan.cost.collective_seconds, 4),
        "gb": round(plan.cost.peak_bytes / 1e9, 1),
        "tried": {str(t.name): round(t.cost.seconds, 4) for t in plan.pipelines if t.fits},
        "planning_cpu_s": round(time.process_time() - begin, 1),
    }


def _tactic(numbers: str) -> Any:
    if numbers == "chosen":
        return ps.Pipeline()
    found = _NUMBERS.fullmatch(numbers)
    if found is None:
        raise ValueError(f"--numbers: {numbers!r} is not chosen, 32x8 or 32x8s")
    microbatches, chunks, split = int(found[1]), int(found[2]), bool(found[3])
    return ps.Pipeline("stage", microbatches, chunks, split_backward=split)


def main(_: Any) -> None:
    warnings.simplefilter("ignore")  # of plans that do not fit: the rows show their bytes
    for numbers in FLAGS.numbers:
        print(json.dumps(row_of(numbers)), flush=True)


if __name__ == "__main__":
    app.run(main)
