"""Pipeline of an encoder and a decoder, compiled ahead of time for TPU v5e.

    python -m experiments.two_stacks

8 + 8 scanned layers with cross attention in bf16, on a mesh stage:4, data:2, with 8 and with 16
microbatches, and with 8 in two chunks; prints predicted and compiled collectives and memory.
Nothing runs.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from absl import app
from jax.sharding import AbstractMesh

import partir_search as ps

LAYERS, WIDTH, WORDS, LENGTH = 8, 1024, 8192, 256  # of each stack
ROWS = 4  # sequences of a microbatch


def _layer(h: Any, p: Any) -> Any:
    return h + jnp.sin(h @ p["w"] + p["b"]), None


def _loss(params: Any, tokens: Any) -> Any:
    p = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    embedded = p["embedding"][tokens[:, :-1]]
    encoded, _ = jax.lax.scan(_layer, embedded, p["encoder"])
    encoded = encoded / (1.0 + (encoded**2).mean(-1, keepdims=True))

    def layer(h: Any, p: Any) -> Any:
        scores = jnp.einsum("bqd,bkd->bqk", h @ p["w"], encoded)
        return _layer(h + jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), encoded), p)

    h, _ = jax.lax.scan(layer, jnp.sin(embedded), p["decoder"])
    scores = jax.nn.log_softmax((h @ p["embedding"].T).astype(jnp.float32))
    return -jnp.take_along_axis(scores, tokens[:, 1:, None], axis=2).mean()


def _step(params: Any, tokens: Any) -> Any:
    value, grads = jax.value_and_grad(_loss)(params, tokens)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def main(_: Any) -> None:
    def f32(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    stack = {"w": f32(LAYERS, WIDTH, WIDTH), "b": f32(LAYERS, WIDTH)}
    params = {"embedding": f32(WORDS, WIDTH), "encoder": stack, "decoder": stack}
    for count, chunks in ((8, 1), (16, 1), (8, 2)):
        schedule: list[Any] = [
            ps.Pipeline("stage", microbatches=count, chunks=chunks),
            ps.ManualPartition({"tokens": 0}, "data"),
        ]
        step = ps.auto_partition(
            AbstractMesh((4, 2), ("stage", "data")),
            machine="tpu_v5e",
            schedule=schedule,
            progress=False,
        )(jax.jit(_step, donate_argnums=0))
        tokens = jax.ShapeDtypeStruct((ROWS * count, LENGTH + 1), jnp.int32)
        print(f"{count} microbatches, chunks={chunks}")
        print(step.plan(params, tokens).verify("tpu_v5e:2x4"))


if __name__ == "__main__":
    app.run(main)
