"""Rings of products inside of the stages of a pipeline, executed on 8 devices."""

from __future__ import annotations

import collections
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import partir_search as ps
from tests.support import assert_same

pytestmark = pytest.mark.devices

LAYERS, WIDTH, WORDS, BATCH, LENGTH, MICROBATCHES, STAGES = 4, 8, 12, 16, 4, 4, 2
TICKS = MICROBATCHES + STAGES - 1  # in which some stage has a pass


def draw(key: jax.Array, *shape: int) -> jax.Array:
    return 0.3 * jax.random.normal(key, shape)


def arguments() -> tuple[Any, Any]:
    """Parameters and tokens."""
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "embedding": draw(keys[0], WORDS, WIDTH),
        "layers": {
            "up": draw(keys[1], LAYERS, WIDTH, 2 * WIDTH),
            "down": draw(keys[2], LAYERS, 2 * WIDTH, WIDTH),
        },
    }
    return params, jax.random.randint(keys[3], (BATCH, LENGTH + 1), 0, WORDS)


def train_step(params: Any, tokens: Any) -> Any:
    """Layers of two products, computed again in the backward pass."""

    def layer(h: Any, p: Any) -> Any:
        return h + jnp.sin(h @ p["up"]) @ p["down"], None

    def loss(params: Any) -> Any:
        h = params["embedding"][tokens[:, :-1]]
        h, _ = jax.lax.scan(jax.checkpoint(layer), h, params["layers"])
        scores = jax.nn.log_softmax(h @ params["embedding"].T)
        return -jnp.take_along_axis(scores, tokens[:, 1:, None], axis=2).mean()

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def check(names: tuple[str, str], *tactics: Any) -> Any:
    """Runs the step on 2 stages x 2 x 2 devices against the plain one; returns its plan."""
    mesh = jax.make_mesh((STAGES, 2, 2), ("stage", *names))
    step = ps.auto_partition(
        mesh,
        machine="tpu_v5e",
        schedule=[ps.Pipeline("stage", microbatches=MICROBATCHES), *tactics],
        progress=False,
    )(jax.jit(train_step))
    want = jax.tree.leaves(jax.jit(train_step)(*arguments()))
    plan = step.plan(*arguments())
    assert_same(jax.tree.leaves(step(*arguments())), want, tolerance=1e-5)
    return plan


def in_layers(plan: Any) -> dict[Any, int]:
    """How often the layers of a stage run collectives of each kind and axes in a step."""
    counted = collections.Counter[Any]()
    for c in plan.collectives:
        if "<locals>.layer" in str(c.source):
            counted[c.kind, c.axes] += c.times
    return counted


def test_products_in_space_and_time() -> None:
    """Two products forward and five backward, each with 2 (n - 1) permutes and nothing else."""
    plan = check(("r", "c"), ps.SpatialTemporal(("r", "c")))
    layers = TICKS * LAYERS // STAGES
    assert in_layers(plan) == {("collective_permute", ("r", "c")): layers * (2 + 5) * 2}


def test_collective_matmul() -> None:
    """Weights of ZeRO 3 rotate beside the products that read them, and sums beside those that make
    them; the weight that two products of the backward pass read is gathered.
    """
    data = ps.ManualPartition({"tokens": 0}, "data")
    state = ps.ManualPartition({"params/layers/*": 2}, "data")
    plan = check(("data", "model"), data, state, ps.CollectiveMatmul(("data",)))
    layers = TICKS * LAYERS // STAGES
    assert in_layers(plan) == {
        ("collective_permute", ("data",)): layers * (2 + 3),
        ("all_gather", ("data",)): layers,
    }
