r"""Compiles plans with real TPU and GPU compilers, without the hardware, and compares.

    python -m experiments.verify --target=tpu_v5e:4x4 --mesh=data:4,model:4 \
        --model=transformer-small --sizes=layers=4,seq=1024 "--plans=auto,BP(data)+Z3"

Prints collectives, memory and flops, predicted and compiled, and one JSON line per plan. Exits
with 1 if a collective differs for no known reason.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags
from jax.sharding import AbstractMesh

import partir_search as ps
from experiments import planning_flags
from models.catalog import MODELS

FLAGS = flags.FLAGS
flags.DEFINE_enum("model", "transformer-small", sorted(MODELS), "Model and its named sizes.")
flags.DEFINE_list(
    "sizes",
    [],
    "Fields of the model's config that differ, e.g. layers=2, remat=True, dtype=bfloat16.",
)
flags.DEFINE_string("target", "tpu_v5e:2x4", "Machine and topology to compile for.")
planning_flags.define(mesh="data:2,model:4", episodes=planning_flags.EPISODES, seed=0)
flags.DEFINE_list("plans", ["auto", "BP(data)+MP(model)"], "auto, or known strategies by name.")
flags.DEFINE_integer("batch", 16, "Examples per step.")


def sizes() -> dict[str, Any]:
    """The --sizes as Python values; names of types stay words."""
    found: dict[str, Any] = {}
    for pair in FLAGS.sizes:
        name, _, text = pair.partition("=")
        try:
            found[name] = ast.literal_eval(text)
        except ValueError:
            found[name] = jnp.dtype(text)
    return found


def plans() -> Iterator[tuple[str, ps.Plan]]:
    entry, shape = MODELS[FLAGS.model].resized(**sizes()), ps.MeshShape.parse(FLAGS.mesh)
    step = ps.auto_partition(
        AbstractMesh(shape.sizes, shape.names),
        machine=ps.Target.parse(FLAGS.target).machine,
        episodes=FLAGS.episodes,
        seed=FLAGS.seed,
        donate_argnums=0,
    )(entry.step)
    args = entry.abstract_args(FLAGS.batch)
    known = step.known_plans(*args) if FLAGS.plans != ["auto"] else {}
    for name in FLAGS.plans:
        if name != "auto" and name not in known:
            raise ValueError(f"no strategy {name!r} on mesh<{shape}>; there are {', '.join(known)}")
        yield name, step.plan(*args) if name == "auto" else known[name]


def run(name: str, plan: ps.Plan) -> tuple[dict[str, Any], bool]:
    found = plan.verify(FLAGS.target)
    print(found)
    peak, compiled = found.peak_bytes
    row = {
        "model": FLAGS.model,
        "sizes": ",".join(FLAGS.sizes),
        "plan": name,
        "target": FLAGS.target,
        "mesh": FLAGS.mesh,
        "collectives": {k: n for k, n in plan.collective_counts.items() if n},
        "confirmed": found.confirmed,
        "peak_mb": round(peak / 1e6, 1),
        "compiled_peak_mb": round(compiled / 1e6, 1),
        "peak_error": round(peak / compiled - 1, 4),
        "argument_bytes": found.argument_bytes,
        "flops_ratio": round(found.flops[0] / found.flops[1], 4),
        "compile_s": round(found.compile_seconds, 1),
        "jax": jax.__version__,
    }
    return row, found.confirmed


def main(argv: list[str]) -> None:
    del argv
    results = [run(name, plan) for name, plan in plans()]
    for row, _ in results:
        print(json.dumps(row))
    if not all(confirmed for _, confirmed in results):
        sys.exit(1)


if __name__ == "__main__":
    app.run(main)
