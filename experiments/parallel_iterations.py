"""Steps with independent iterations, planned without and with parts that devices share.

    python -m experiments.parallel_iterations --steps=clipped,microbatches --cycles

A language model of four layers: gradients of single examples, clipped and added up; gradients of
microbatches; a loss in chunks of rows, and in chunks of each row. Prints simulated seconds of the
fastest known strategy and of the plan, and with --cycles seconds by XLA:TPU's cycles, and compiled
peak memory. Nothing runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import optax
from absl import app, flags
from jax import lax
from jax.sharding import AbstractMesh
from rich.console import Console
from rich.table import Table

import partir_search as ps
from experiments import planning_flags
from partir_search.aot.judge import judge
from partir_search.planning import program_forms

LAYERS, WIDTH, HEADS, WORDS, ROWS, LENGTH = 4, 1024, 8, 32768, 32, 1024
MICROBATCHES, CHUNKS = 4, 8

FLAGS = flags.FLAGS
flags.DEFINE_list("steps", None, "Steps to plan; default: all.")
flags.DEFINE_string("target", "tpu_v5e:2x4", "Machine and topology.")
flags.DEFINE_boolean("cycles", False, "Compile in full, for seconds by the compiler's cycles.")
planning_flags.define(mesh="data:2,model:4", episodes=planning_flags.EPISODES, seed=0)


def narrow(x: Any) -> Any:
    return x.astype(jnp.bfloat16)


def norm(x: Any) -> Any:
    y = x.astype(jnp.float32)
    return narrow(y * lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6))


def hidden(p: Any, tokens: Any) -> Any:
    """Last hidden states of a decoder, in bf16."""
    h = narrow(p["embed"])[tokens]
    causal = jnp.tril(jnp.ones((tokens.shape[-1],) * 2, bool))
    for i in range(LAYERS):
        q, k, v = jnp.einsum("bsd,dchk->cbhsk", norm(h), narrow(p["qkv"][i]))
        scores = jnp.einsum("bhsk,bhtk->bhst", q, k).astype(jnp.float32)
        scores = jnp.where(causal, scores / math.sqrt(WIDTH // HEADS), -1e9)
        mixed = narrow(jax.nn.softmax(scores))
        h = h + jnp.einsum("bhst,bhtk,hkd->bsd", mixed, v, narrow(p["out"][i]))
        h = h + jax.nn.gelu(norm(h) @ narrow(p["up"][i])) @ narrow(p["down"][i])
    return norm(h)


def losses(p: Any, h: Any, labels: Any) -> Any:
    scores = (h @ narrow(p["head"])).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels)


def whole(p: Any, tokens: Any, labels: Any) -> Any:
    return losses(p, hidden(p, tokens), labels).mean()


def in_chunks(p: Any, h: Any, labels: Any) -> Any:
    """Mean loss of chunks along the leading dim, computed again in the backward pass."""

    @jax.checkpoint
    def add(total: Any, chunk: Any) -> Any:
        return total + losses(p, *chunk).sum(), None

    return lax.scan(add, jnp.float32(0), (h, labels))[0] / labels.size


def of_rows(p: Any, tokens: Any, labels: Any) -> Any:
    h = hidden(p, tokens).reshape(CHUNKS, -1, WIDTH)
    return in_chunks(p, h, labels.reshape(CHUNKS, -1))


def of_each_row(p: Any, tokens: Any, labels: Any) -> Any:
    h = hidden(p, tokens).reshape(ROWS, CHUNKS, -1, WIDTH)
    labels = labels.reshape(ROWS, CHUNKS, -1)
    return in_chunks(p, h.swapaxes(0, 1), labels.swapaxes(0, 1))


def clipped(p: Any, tokens: Any, labels: Any) -> Any:
    """Sum of the gradients of single examples, each of norm 1 at most."""

    def add(total: Any, row: Any) -> Any:
        grads = jax.grad(whole)(p, row[0][None], row[1][None])
        scale = jnp.minimum(1.0, 1.0 / optax.tree.norm(grads)) / ROWS
        return jax.tree.map(lambda a, b: a + scale * b, total, grads), None

    return lax.scan(add, jax.tree.map(jnp.zeros_like, p), (tokens, labels))[0]


def microbatches(p: Any, tokens: Any, labels: Any) -> Any:
    """Mean gradient of microbatches."""
    parts = [x.reshape(MICROBATCHES, -1, LENGTH) for x in (tokens, labels)]

    def add(total: Any, part: Any) -> Any:
        grads = jax.grad(whole)(p, *part)
        return jax.tree.map(lambda a, b: a + b / MICROBATCHES, total, grads), None

    return lax.scan(add, jax.tree.map(jnp.zeros_like, p), parts)[0]


STEPS: dict[str, Callable[..., Any]] = {
    "clipped": clipped,
    "microbatches": microbatches,
    "rows": jax.grad(of_rows),
    "each row": jax.grad(of_each_row),
}


def arguments() -> tuple[Any, ...]:
    """Types of the train state, of tokens and of labels."""

    def f32(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    params = {
        "embed": f32(WORDS, WIDTH),
        "qkv": f32(LAYERS, WIDTH, 3, HEADS, WIDTH // HEADS),
        "out": f32(LAYERS, HEADS, WIDTH // HEADS, WIDTH),
        "up": f32(LAYERS, WIDTH, 4 * WIDTH),
        "down": f32(LAYERS, 4 * WIDTH, WIDTH),
        "head": f32(WIDTH, WORDS),
    }
    tokens = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32)
    return (params, jax.eval_shape(optax.adamw(1e-3).init, params)), tokens, tokens


def planned(gradient: Callable[..., Any], parts: bool) -> ps.Plan:
    """Plan of a step of AdamW, with iterations in parts (`parts`) where the planner takes them."""

    def step(state: Any, tokens: Any, labels: Any) -> Any:
        params, optimizer = state
        updates, optimizer = optax.adamw(1e-3).update(
            gradient(params, tokens, labels), optimizer, params
        )
        return optax.apply_updates(params, updates), optimizer

    shape = ps.MeshShape.parse(FLAGS.mesh)
    partitioned = ps.auto_partition(
        AbstractMesh(shape.sizes, shape.names),
        machine=ps.Target.parse(FLAGS.target).machine,
        episodes=FLAGS.episodes,
        seed=FLAGS.seed,
        donate_argnums=0,
        progress=False,
    )(step)
    if parts:
        return partitioned.plan(*arguments())
    unchanged = mock.patch.object(program_forms, "iteration_forms", lambda stage, *_: [stage])
    with unchanged:
        return partitioned.plan(*arguments())


def main(_: Any) -> None:
    table = Table(title=f"independent iterations, {FLAGS.target}", title_justify="left")
    for column in ("step", "parts", "best known ms", "ms", "judged ms", "MB", "compiled MB"):
        table.add_column(column, justify="right")
    for name in FLAGS.steps or STEPS:
        for parts in (False, True):
            plan = planned(STEPS[name], parts)
            known = min(cost.seconds for search in plan.searches for _, cost in search.known)
            found = plan.verify(FLAGS.target, cycles=FLAGS.cycles)
            machine, mesh = ps.Target.parse(FLAGS.target).machine, plan.program.partition.mesh
            seconds = judge(found.hlo, mesh, machine).total if FLAGS.cycles else math.nan
            table.add_row(
                *(name, str(plan.parallel_iterations)),
                *(f"{1e3 * s:.2f}" for s in (known, plan.cost.seconds, seconds)),
                *(f"{n / 1e6:.0f}" for n in (plan.cost.peak_bytes, found.peak_bytes[1])),
            )
            print(name, plan, "confirmed" if found.confirmed else found.unexplained, flush=True)
    Console(width=120).print(table)


if __name__ == "__main__":
    app.run(main)
