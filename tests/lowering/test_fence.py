"""Gathers that are made again are not merged with the first, and nothing is stored for that."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
import optax
import pytest

import partir_search as ps

BATCH, WIDTH, VOCAB = 16, 32, 512


def step(u: Any, w: Any, x: Any, labels: Any) -> Any:
    """Logits' gradient, elementwise, is read by two products: one with `w`, gathered again."""

    def loss(u: Any, w: Any) -> Any:
        logits = jax.numpy.tanh(x @ u) @ w
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    value, (du, dw) = jax.value_and_grad(loss, argnums=(0, 1))(u, w)
    return u - 0.1 * du, w - 0.1 * dw, value


def arguments() -> list[Any]:
    random = np.random.default_rng(0)
    shapes = [(WIDTH, WIDTH), (WIDTH, VOCAB), (BATCH, WIDTH)]
    matrices = [random.normal(size=s).astype(np.float32) for s in shapes]
    return [*matrices, random.integers(0, VOCAB, BATCH, dtype=np.int32)]


@pytest.mark.devices
def test_logits_gradient_need_not_be_stored(mesh: jax.sharding.Mesh) -> None:
    tactics = [
        ps.ManualPartition({"x": 0, "labels": 0}, axis="batch"),
        ps.ManualPartition({"w": 0}, axis="batch"),
    ]
    partitioned = ps.auto_partition(mesh, schedule=tactics, machine="cpu")(step)
    args = arguments()
    plan = partitioned.plan(*args)
    assert plan.collective_counts["all_gather"] == 2  # forward, and again backward
    barriers = re.findall(r"optimization_barrier .* : (.*)", partitioned.lower(*args).as_text())
    shard = f"tensor<{WIDTH // 2}x{VOCAB}xf32>"
    assert [types for types in barriers if shard in types] == [shard]
    for got, want in zip(partitioned(*args), step(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
