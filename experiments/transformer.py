"""The main job: a byte-level language model, trained partitioned and on one device, side by side.

    python -m experiments.transformer --mesh=batch:2,model:4 --schedule=auto

Prints what was planned and why, the tilings, collectives predicted and compiled, the peak by the
target's compiler, the time of a step beside `jax.jit` with the same shardings, and both runs'
losses. Exits with 1 when the losses differ by more than float rounding.
On several hosts the same command runs on each, with `--cluster` or `--coordinator=host:port
--num_processes=N --process_id=I`. `--checkpoint=DIR` keeps the state and goes on from it.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import time
from typing import Any

from experiments.devices import use_cpu_devices

use_cpu_devices()

import jax  # noqa: E402  (the devices must be set before jax starts)
import jax.numpy as jnp  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402
from absl import app, flags, logging  # noqa: E402
from rich.console import Console  # noqa: E402

import partir_search as ps  # noqa: E402
from experiments import planning_flags  # noqa: E402
from experiments.cluster import is_first, join_cluster  # noqa: E402
from experiments.demo_output import (  # noqa: E402
    NEXT,
    show_compiled,
    show_losses,
    show_plan,
    show_speed,
    show_target,
)
from experiments.schedules import schedule  # noqa: E402
from experiments.text import batches, read_bytes  # noqa: E402
from models.transformer import (  # noqa: E402
    TransformerConfig,
    init_state,
    make_train_step,
    optimizer,
)

FLAGS = flags.FLAGS
planning_flags.define(
    mesh="batch:2,model:4", machine="tpu_v5e", episodes=planning_flags.EPISODES, seed=0
)
flags.DEFINE_integer("layers", 4, "Transformer blocks.")
flags.DEFINE_integer("d_model", 128, "Width.")
flags.DEFINE_integer("heads", 8, "Attention heads.")
flags.DEFINE_integer("d_ff", 512, "Width of the MLP.")
flags.DEFINE_integer("vocab", 256, "Token ids; text is bytes.")
flags.DEFINE_integer("seq", 128, "Tokens per example.")
flags.DEFINE_integer("batch", 16, "Examples per step.")
flags.DEFINE_integer("steps", 20, "Training steps.")
flags.DEFINE_boolean("scan", False, "Fold the layers into one scan.")
flags.DEFINE_boolean("remat", False, "Recompute each layer in the backward pass.")
flags.DEFINE_float("dropout", 0.0, "Dropout rate.")
flags.DEFINE_string("schedule", "auto", "auto, or parts joined by +: bp, mp, z2, z3, auto.")
flags.DEFINE_string("text", None, "Glob of text files; default: the standard library's sources.")
flags.DEFINE_string(
    "out", None, "Folder for the plan, its IR, the search's tree (JSON and picture) and the losses."
)

flags.DEFINE_string("checkpoint", None, "Folder to keep the state in, and to go on from.")
flags.DEFINE_integer("save_every", 10, "Steps between checkpoints.")
flags.DEFINE_boolean("plan_once", False, "Plan on the first process, replay on the others.")
flags.DEFINE_string("plan_cache", None, "Folder of plans: a second start plans nothing.")

TOLERANCE = 2e-4  # relative; sums are taken in another order on several devices


def make_mesh(text: str) -> Any:
    shape = ps.MeshShape.parse(text)
    if shape.devices > jax.device_count():
        raise ValueError(
            f"--mesh={text} needs {shape.devices} devices, jax sees {jax.device_count()}"
        )
    return jax.make_mesh(shape.sizes, shape.names, devices=jax.devices()[: shape.devices])


def main(argv: list[str]) -> None:
    del argv
    join_cluster()
    logging.set_verbosity(logging.WARNING)  # orbax tells a lot
    console = Console(width=None if sys.stdout.isatty() else 100, quiet=not is_first())
    config = TransformerConfig(
        layers=FLAGS.layers,
        d_model=FLAGS.d_model,
        heads=FLAGS.heads,
        d_ff=FLAGS.d_ff,
        vocab=FLAGS.vocab,
        seq=FLAGS.seq,
        dropout=FLAGS.dropout,
        scan=FLAGS.scan,
        remat=FLAGS.remat,
    )
    mesh = make_mesh(FLAGS.mesh)
    axes = mesh.axis_names
    train_step = make_train_step(config)
    partitioned = ps.auto_partition(
        mesh,
        schedule=schedule(FLAGS.schedule, axes[0], axes[-1]),
        machine=FLAGS.machine,
        episodes=FLAGS.episodes,
        seed=FLAGS.seed,
        donate_argnums=0,
        progress=is_first(),
        plan_on="first" if FLAGS.plan_once else "every",
        cache=FLAGS.plan_cache,
    )(train_step)
    tx = optimizer(steps=FLAGS.steps)
    key = jax.random.key(FLAGS.seed)
    data = batches(read_bytes(FLAGS.text), FLAGS.batch, config.seq, config.vocab, FLAGS.seed)
    inputs = [next(data) for _ in range(FLAGS.steps)]

    def new_state() -> Any:
        return init_state(config, tx, FLAGS.seed)

    begin = time.perf_counter()
    plan = partitioned.plan(jax.eval_shape(new_state), inputs[0], key)
    console.print(f"planned in {time.perf_counter() - begin:.1f} s")
    show_plan(console, plan, "layers" if config.scan else "layer_0")
    lowered = partitioned.lower(*plan.abstract_args[0])
    show_compiled(console, plan, lowered, lowered.compile())
    if jax.process_count() == 1:  # a compiler of TPUs in one of several processes ends it
        show_target(console, plan)

    with checkpoints() as saver:
        first = (saver.latest_step() if saver else None) or 0
        if saver and first:
            console.print(f"going on after step {first - 1} of {FLAGS.checkpoint}")
            into = ocp.args.StandardRestore(plan.abstract_state)
            many = saver.restore(first, args=into)
        else:
            many = partitioned.init(new_state, inputs[0], key)
        found, seconds = {}, []
        for i in range(first, FLAGS.steps):
            tokens = plan.make_global_batch(inputs[i])  # each process keeps the rows that it needs
            begin = time.perf_counter()
            many, loss = partitioned(many, tokens, key)
            found[i] = float(loss)
            seconds.append(time.perf_counter() - begin)
            if saver and (i + 1) % FLAGS.save_every == 0:
                saver.save(i + 1, args=ocp.args.StandardSave(many))
    alone = jax.process_count() == 1
    show_speed(
        console, seconds[1:], jitted(plan, train_step, new_state, inputs, key) if alone else None
    )
    worst = show_losses(console, found, one_device(train_step, new_state, inputs, key))
    if FLAGS.out and is_first():
        write(pathlib.Path(FLAGS.out), plan, found)
    if not worst <= TOLERANCE:
        console.print(f"[bold red]losses differ by {worst:.1e}, more than {TOLERANCE:.0e}")
        sys.exit(1)
    console.print(f"losses agree within {worst:.1e} over {len(found)} steps")
    console.print(NEXT, highlight=False)


def checkpoints() -> Any:
    """A manager of `--checkpoint`, or nothing to manage."""
    if FLAGS.checkpoint is None:
        return contextlib.nullcontext()
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    return ocp.CheckpointManager(os.path.abspath(FLAGS.checkpoint), options=options)


def jitted(plan: ps.Plan, step: Any, new_state: Any, inputs: list[Any], key: Any) -> list[float]:
    """Seconds of each step but the first under `jax.jit` with the plan's shardings."""
    given, results = plan.in_shardings[0], plan.out_shardings
    many = jax.jit(new_state, out_shardings=given[0])()
    run = jax.jit(step, in_shardings=given, out_shardings=results, donate_argnums=0)
    seconds = []
    for tokens in inputs:
        begin = time.perf_counter()
        many, loss = run(many, tokens, key)
        float(loss)
        seconds.append(time.perf_counter() - begin)
    return seconds[1:]


def one_device(step: Any, new_state: Any, inputs: list[Any], key: Any) -> list[float]:
    """Losses of the plain step on this process's first device."""
    with jax.default_device(jax.local_devices()[0]):
        plain, state, losses = jax.jit(step), jax.jit(new_state)(), []
        for tokens in inputs:
            state, loss = plain(state, jnp.asarray(tokens), key)
            losses.append(float(loss))
    return losses


def write(folder: pathlib.Path, plan: ps.Plan, losses: dict[int, float]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    plan.save(folder / "plan.json")
    plan.save_search(folder)
    (folder / "plan.ir").write_text(plan.ir(full=True) + "\n")
    lines = ["step,loss", *(f"{i},{loss!r}" for i, loss in losses.items())]
    (folder / "losses.csv").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    app.run(main)
