"""Gathers that are made again are not merged with the first, and nothing is stored for that."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import numpy as np
import optax
import pytest

import partir_search as ps
from partir_search.lowering.local_ir import Reshard
from partir_search.lowering.localize import localize
from partir_search.lowering.reshard_steps import AllGather
from partir_search.lowering.scheduling.cse import prevent_cse
from partir_search.lowering.traits import NEUTRAL

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


def test_zeros_in_tiles_are_not_stored() -> None:
    """A regather that a scatter reads beside a slice of zeros waits for the source alone."""

    def step(w: Any, x: Any, labels: Any) -> Any:
        def loss(w: Any) -> Any:
            return jax.numpy.take_along_axis(x @ w, labels[:, None], -1).mean()

        return w - 0.1 * jax.grad(loss)(w)

    abstract = jax.sharding.AbstractMesh((2, 4), ("batch", "model"))
    options: Any = {"machine": "tpu_v5e", "schedule": []}
    plan = ps.auto_partition(abstract, **options)(step).plan(*arguments()[1:])
    scatter = next(op for op in plan.module.ops if op.prim == "scatter-add")
    zeros = scatter.operands[0].name
    apart = [ps.Replicate("labels", "batch")]
    apart += [ps.Replicate(zeros, axis) for axis in ("batch", "model")]
    actions = (*apart, ps.Tile("labels", 0, "model"), ps.Tile("x", 0, "batch"))
    options["schedule"] = dataclasses.replace(plan.spec, actions=actions)
    program = localize(
        ps.auto_partition(abstract, **options)(step).plan(*arguments()[1:]).partition
    )
    steps = list(program.body.steps)
    gather = next(s for s in steps if isinstance(s, Reshard) and isinstance(s.step, AllGather))
    slices = [s for s in steps if isinstance(s, Reshard) and s.source.value.name == zeros]
    assert slices
    at = steps.index(slices[-1]) + 1
    steps.insert(at, dataclasses.replace(gather, regather=True, op=slices[-1].op))
    program = dataclasses.replace(program, body=dataclasses.replace(program.body, steps=steps))
    (again,) = (s for s in prevent_cse(program, NEUTRAL).body.steps if _again(s))
    assert again.scheduling.barrier is not None
    assert all(local.value.name != zeros for local in again.scheduling.barrier)


def test_the_earlier_copy_is_not_kept_for_the_later_one() -> None:
    def step(g: Any, x: Any) -> Any:
        row = jax.numpy.broadcast_to(g, (1, 64))
        h = row * x
        for _ in range(70):
            h = jax.numpy.tanh(h)
        return row * (h @ (h.T @ h))

    vector, matrix = (jax.ShapeDtypeStruct(s, jax.numpy.float32) for s in ((64,), (1024, 64)))
    abstract = jax.sharding.AbstractMesh((2,), ("batch",))
    tactics = [ps.ManualPartition({"x": 0}, axis="batch"), ps.ManualPartition({"g": 0}, "batch")]
    partitioned = ps.auto_partition(abstract, schedule=tactics, machine="tpu_v5e")(step)
    text = partitioned.plan(vector, matrix).local_ir()
    found = re.findall(r"all_gather\(%([\w.]+)\[.*regather barrier=\[(.*)\] for", text)
    assert found, text
    assert not any(f"%{name}[" in barrier for name, barrier in found), found


def _again(step: Any) -> bool:
    return isinstance(step, Reshard) and step.regather and step.step.communicates
