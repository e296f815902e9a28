"""Sums of scalars that lie partial on some devices and finished on others, as of a global norm."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import partir_search as ps
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Partition
from partir_search.lowering.localize import localize
from tests.support import (
    assert_same,
    check_partition,
    device_mesh,
    floats_of,
    module_of,
    state_of,
    tile_arg,
)

MESH = MeshShape(("data", "model"), (4, 2))


def clipped(*leaves: Any) -> Any:
    norm = jnp.sqrt(sum(jnp.sum(x * x) for x in leaves))
    return [x / jnp.maximum(norm, 1.0) for x in leaves]


def partition_of(tiled: str, fn: Any = clipped) -> tuple[Partition, list[jax.Array]]:
    """Leaves tiled on no axis (.), one (d or m), or both (b)."""
    args = floats_of(*((8, 4) for _ in tiled))
    state = state_of(module_of(fn, *args), MESH)
    for i, axes in enumerate(tiled):
        for axis, dim, where in (("data", 0, "db"), ("model", 1, "mb")):
            if axes in where:
                tile_arg(state, i, dim, axis)
    return state.partition(), args


def reductions(partition: Partition) -> Counter[str]:
    """Number of scalar all_reduces by axis."""
    found: Counter[str] = Counter()
    for item, _ in localize(partition).reshards():
        if item.step.kind == "all_reduce" and not item.source.value.type.shape:
            found.update(MESH.names[a] for a in item.step.axes)
    return found


@pytest.mark.parametrize("tiled", ["d.dd", ".d.d", "b.mdb.", "mb.b", "d...", "...."])
def test_each_axis_is_reduced_once(tiled: str) -> None:
    partition, args = partition_of(tiled)
    check_partition(partition, clipped, args)
    axes = {"d": "d", "m": "m", "b": "dm", ".": ""}
    on = {a for leaf in tiled for a in axes[leaf]}
    assert reductions(partition) == {n: 1 for n in MESH.names if n[0] in on}


def test_parts_of_a_loss_join_after_the_loop_over_microbatches() -> None:
    """Weights' terms of a loss stand between means over data, on a time axis and on devices."""

    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            y = jnp.tanh(x @ w)
            return jnp.mean(y**2) + 0.1 * jnp.sum(w * w) + jnp.mean(jnp.abs(y))

        value, grad = jax.value_and_grad(loss)(w)
        return w - 0.1 * grad, value

    args = floats_of((16, 32), (32, 16))
    schedule = [ps.ManualPartition({"x": 0}, "data"), ps.ManualPartition({"w": 1}, "model")]
    partitioned = ps.auto_partition(device_mesh(MESH), schedule=schedule, microbatches=2)(step)
    assert_same(partitioned(*args), step(*args))
    collectives = partitioned.plan(*args).collectives
    reduced = Counter(axis for c in collectives if c.bytes <= 4 for axis in c.axes)
    assert reduced == {"data": 1, "model": 1}
