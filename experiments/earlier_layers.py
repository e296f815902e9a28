"""Pipelines of layers that read earlier layers than the last, compiled ahead of time for TPU v5e.

    python -m experiments.earlier_layers

Language models of d 1,024 with layers written out, on a mesh stage:4, data:2, in 8 microbatches;
prints predicted and compiled peaks. Nothing runs.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from absl import app
from jax.sharding import AbstractMesh

import partir_search as ps

WIDTH, WORDS, LENGTH = 1024, 8192, 512
MICROBATCHES, ROWS = 8, 4  # sequences of a microbatch


def _layer(h: Any, p: Any) -> Any:
    return h + jax.nn.gelu(h @ p["up"]) @ p["down"]


def _joined(h: Any, other: Any, p: Any) -> Any:
    return _layer(jnp.concatenate([h, other], -1) @ p["join"], p)


def _three_before(layers: Any, x: Any) -> Any:
    states = [x, x, x]
    for p in layers:
        states.append(_layer(states[-1], p) + jnp.bfloat16(0.1) * jnp.tanh(states[-3]))
    return states[-1]


def _two_joined(layers: Any, x: Any) -> Any:
    h, before = x, x
    for p in layers:
        h, before = _joined(h, before, p), h
    return h


def _summed(layers: Any, x: Any) -> Any:
    states = [x]
    for p in layers:
        states.append(_layer(sum(states), p))
    return states[-1]


def _averaged(layers: Any, x: Any) -> Any:
    states = [x]
    for p in layers:
        states.append(_layer(states[-1] + sum(states) / jnp.bfloat16(len(states)), p))
    return sum(states)


def _skips(layers: Any, x: Any) -> Any:
    skips: list[Any] = []
    h = x
    for p in layers:
        if "join" in p:
            h = _joined(h, skips.pop(), p)
        else:
            h = _layer(h, p)
            skips.append(h)
    return h


# Model, layers, and the first layer that joins two states.
STEPS = {
    "the state three layers before, added": (_three_before, 12, 12),
    "the two states before, joined": (_two_joined, 12, 0),
    "the sum of all earlier states": (_summed, 12, 12),
    "their mean, and a head that reads the sum": (_averaged, 12, 12),
    "skips from layer i to layer L - 1 - i, joined": (_skips, 16, 8),
}


def _params(count: int, first: int) -> Any:
    def f32(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    layer = {"up": f32(WIDTH, 4 * WIDTH), "down": f32(4 * WIDTH, WIDTH)}
    joining = layer | {"join": f32(2 * WIDTH, WIDTH)}
    layers = [dict(joining if i >= first else layer) for i in range(count)]
    return {"embedding": f32(WORDS, WIDTH), "head": f32(WIDTH, WORDS), "layers": layers}


def _step(model: Any) -> Any:
    def loss(params: Any, tokens: Any) -> Any:
        p = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
        h = model(p["layers"], p["embedding"][tokens[:, :-1]])
        scores = jax.nn.log_softmax((h @ p["head"]).astype(jnp.float32))
        return -jnp.take_along_axis(scores, tokens[:, 1:, None], axis=2).mean()

    def step(params: Any, tokens: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, tokens)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return jax.jit(step, donate_argnums=0)


def main(_: Any) -> None:
    for name, (model, count, first) in STEPS.items():
        step = ps.auto_partition(
            AbstractMesh((4, 2), ("stage", "data")),
            machine="tpu_v5e",
            schedule=[
                ps.Pipeline("stage", microbatches=MICROBATCHES, chunks=1),
                ps.ManualPartition({"tokens": 0}, "data"),
            ],
            progress=False,
        )(_step(model))
        tokens = jax.ShapeDtypeStruct((ROWS * MICROBATCHES, LENGTH + 1), jnp.int32)
        found = step.plan(_params(count, first), tokens).verify("tpu_v5e:2x4")
        predicted, compiled = found.peak_bytes
        line = f"{name}: peak {predicted / 1e6:.1f} MB predicted, {compiled / 1e6:.1f} compiled"
        print(f"{line}, {100 * (predicted / compiled - 1):+.1f} %", flush=True)


if __name__ == "__main__":
    app.run(main)
