"""Compiles plans with real TPU compilers, without the hardware, and compares with what was said.

    python -m experiments.verify --target=tpu_v5e:4x4 --mesh=batch:4,model:4 --schedules=bp+mp+z3

Prints collectives, memory and flops, predicted and compiled, and one JSON line per plan. Exits
with 1 if a collective differs for no known reason.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags
from jax.sharding import AbstractMesh

import partir_search as ps
from experiments.schedules import schedule
from models.transformer import TransformerConfig, example_args, make_train_step, optimizer

FLAGS = flags.FLAGS
flags.DEFINE_enum("model", "transformer", ["transformer"], "Model.")
flags.DEFINE_string("target", "tpu_v5e:2x4", "Machine and topology to compile for.")
flags.DEFINE_string("mesh", "batch:2,model:4", "Mesh axes and sizes, as many devices as the target")
flags.DEFINE_list("schedules", ["bp", "bp+mp", "bp+mp+z2", "bp+mp+z3", "auto"], "Schedules.")
flags.DEFINE_integer("layers", 2, "Transformer blocks.")
flags.DEFINE_integer("d_model", 512, "Width.")
flags.DEFINE_integer("heads", 8, "Attention heads.")
flags.DEFINE_integer("vocab", 8192, "Token ids.")
flags.DEFINE_integer("seq", 512, "Tokens per example.")
flags.DEFINE_integer("batch", 16, "Examples per step.")
flags.DEFINE_boolean("remat", False, "Recompute each layer in the backward pass.")
flags.DEFINE_boolean("scan", False, "Fold the layers into one scan.")
flags.DEFINE_boolean("bf16", False, "Matrix products in bfloat16.")
flags.DEFINE_integer("episodes", 600, "Strategies that the search scores.")
flags.DEFINE_integer("seed", 0, "Seed of the search.")


def run(name: str) -> tuple[dict[str, Any], bool]:
    config = TransformerConfig(
        layers=FLAGS.layers,
        d_model=FLAGS.d_model,
        heads=FLAGS.heads,
        d_ff=4 * FLAGS.d_model,
        vocab=FLAGS.vocab,
        seq=FLAGS.seq,
        remat=FLAGS.remat,
        scan=FLAGS.scan,
        dtype=jnp.bfloat16 if FLAGS.bf16 else jnp.float32,
    )
    shape = ps.MeshShape.parse(FLAGS.mesh)
    plan = ps.auto_partition(
        AbstractMesh(shape.sizes, shape.names),
        schedule=schedule(name, shape.names[0], shape.names[-1]),
        machine=ps.Target.parse(FLAGS.target).machine,
        episodes=FLAGS.episodes,
        seed=FLAGS.seed,
        donate_argnums=0,
    )(make_train_step(config)).plan(*example_args(config, optimizer(), FLAGS.batch))
    found = plan.verify(FLAGS.target)
    print(found)
    peak, compiled = found.peak_bytes
    row = {
        "model": FLAGS.model,
        "schedule": name,
        "target": FLAGS.target,
        "mesh": FLAGS.mesh,
        "layers": FLAGS.layers,
        "d_model": FLAGS.d_model,
        "remat": FLAGS.remat,
        "scan": FLAGS.scan,
        "bf16": FLAGS.bf16,
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
    results = [run(name) for name in FLAGS.schedules]
    for row, _ in results:
        print(json.dumps(row))
    if not all(confirmed for _, confirmed in results):
        sys.exit(1)


if __name__ == "__main__":
    app.run(main)
