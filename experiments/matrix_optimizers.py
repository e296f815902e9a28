"""Muon's update in five forms, compiled: Newton-Schulz iterations replicated, in rows, on stacks.

    python -m experiments.matrix_optimizers --layers=4 --d_model=1024 --target=tpu_v5e:2x4

Matrices, momenta and gradients of a transformer's blocks lie in slices of their shorter dim on all
devices, but for the replicated form, in which they are whole. Prints per form the floating-point
operations of a device over an even share, the seconds of the simulator and of the compiled program
by the compiler's cycles (`experiments/judge.py`), and gigabytes at the peak. The form "XLA" is
`jax.jit` with the same shardings.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from absl import app, flags
from jax.sharding import AbstractMesh, NamedSharding

import partir_search as ps
from experiments import planning_flags
from experiments.judge import judge

FLAGS = flags.FLAGS
flags.DEFINE_integer("layers", 4, "Transformer blocks.")
flags.DEFINE_integer("d_model", 1024, "Width; the hidden layer is four times as wide.")
flags.DEFINE_string("target", "tpu_v5e:2x4", "Machine and topology to compile for.")
planning_flags.define(mesh="data:2,model:4", episodes=planning_flags.EPISODES)

TX = optax.contrib.muon(1e-3)


def update(params: Any, state: Any, grads: Any) -> Any:
    """New parameters and state of Muon."""
    changes, state = TX.update(grads, state, params)
    return optax.apply_updates(params, changes), state


def arguments() -> tuple[Any, Any, Any]:
    """Abstract parameters, state and gradients of the blocks' matrices."""
    d = FLAGS.d_model
    shapes = {**dict.fromkeys("qkvo", (d, d)), "up": (d, 4 * d), "down": (4 * d, d)}
    block = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    params = {f"block_{i}": block for i in range(FLAGS.layers)}
    return params, jax.eval_shape(TX.init, params), params


def forms(shape: ps.MeshShape) -> dict[str, ps.Plan]:
    """Plans by name."""

    def plan(schedule: Any, stack: Any = False) -> ps.Plan:
        step = ps.auto_partition(
            AbstractMesh(shape.sizes, shape.names),
            machine=ps.Target.parse(FLAGS.target).machine,
            schedule=schedule,
            stack=stack,
            episodes=FLAGS.episodes,
            progress=False,
            donate_argnums=(0, 1),
        )(update)
        return step.plan(*arguments())

    def rows(_: str, shape: tuple[int, ...]) -> int | None:
        return shape.index(min(shape)) if len(shape) == 2 else None

    dims = {"params/**": rows, "state/**": rows, "grads/**": rows}
    by_rows = [ps.ManualPartition(dims, axis=axis) for axis in shape.names]
    return {
        "replicated": plan([]),
        "rows": plan(by_rows),
        "stacked": plan([ps.StackParallel(shape.names), *by_rows], True),
        "found without stacks": plan(None),
        "found": plan(None, "auto"),
    }


def by_xla(rows: ps.Plan, target: ps.Target) -> tuple[str, float]:
    """Program by XLA's partitioner from the shardings of a plan, and its peak in bytes."""
    mesh = target.mesh(rows.mesh_shape)
    args = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, s.spec)),
        arguments(),
        rows.in_shardings[0],
    )
    out = jax.tree.map(lambda x: x.sharding, (args[0], args[1]))
    jitted = jax.jit(update, donate_argnums=(0, 1), out_shardings=out)
    compiled = jitted.lower(*args).compile(compiler_options=target.compiler_options or None)
    memory = compiled.memory_analysis()
    peak = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    return compiled.as_text(), float(peak)


def main(argv: list[str]) -> None:
    del argv
    shape, target = ps.MeshShape.parse(FLAGS.mesh), ps.Target.parse(FLAGS.target)
    plans = forms(shape)
    ideal = plans["replicated"].cost.flops / shape.devices
    print("| form | FLOPs / even share | simulated ms | judged ms | peak GB predicted / compiled |")
    print("|---|---|---|---|---|")
    for name, plan in plans.items():
        found = plan.verify(FLAGS.target)
        judged = judge(found.hlo, plan.program.partition.mesh, target.machine).total * 1e3
        peak = " / ".join(f"{b / 1e9:.2f}" for b in found.peak_bytes)
        cells = f"{plan.cost.flops / ideal:.2f} | {plan.cost.seconds * 1e3:.2f} | {judged:.2f}"
        print(f"| {name} | {cells} | {peak} |", flush=True)
    text, peak_bytes = by_xla(plans["rows"], target)
    judged = judge(text, shape, target.machine).total * 1e3
    print(f"| XLA, from the shardings of rows | - | - | {judged:.2f} | - / {peak_bytes / 1e9:.2f} |")


if __name__ == "__main__":
    app.run(main)
