"""Sums of scalars that lie partial on some devices and finished on others, as of a global norm."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import partir_search as ps
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Partition
from partir_search.lowering.local_ir import Reshard
from partir_search.lowering.localize import localize
from partir_search.mcts.game import play, rewind
from partir_search.planning.planner import Planner
from partir_search.planning.trace import split_call, trace_call
from partir_search.propagation.state import State
from partir_search.simulator.target.machine import MACHINES
from partir_search.strategies.catalogue import named_strategies
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


def reductions(partition: Partition) -> list[Reshard]:
    """The all_reduces of scalars."""
    every = [item for item, _ in localize(partition).reshards()]
    return [m for m in every if m.step.kind == "all_reduce" and not m.source.value.type.shape]


@pytest.mark.parametrize("tiled", ["d.dd", ".d.d", "b.mdb.", "mb.b", "d...", "...."])
def test_each_axis_is_reduced_once(tiled: str) -> None:
    partition, args = partition_of(tiled)
    check_partition(partition, clipped, args)
    axes = {"d": "d", "m": "m", "b": "dm", ".": ""}
    on = {a for leaf in tiled for a in axes[leaf]}
    found = Counter(MESH.names[a] for item in reductions(partition) for a in item.step.axes)
    assert found == {n: 1 for n in MESH.names if n[0] in on}


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


def test_a_fold_counts_the_reductions_of_a_global_norm_as_the_program_does() -> None:
    """Leaves of eight equal layers: once for each summand kept, once for all leaves."""

    def step(layers: list[dict[str, Any]], x: Any) -> Any:
        def loss(layers: list[dict[str, Any]]) -> Any:
            h = x
            for layer in layers:
                h = h + jnp.tanh(h @ layer["up"] + layer["bias"]) @ layer["down"]
            return jnp.sum(h * h)

        grads = jax.tree.leaves(jax.grad(loss)(layers))
        return jax.tree.unflatten(jax.tree.structure(layers), clipped(*grads))

    f32 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    layer = {"up": f32((64, 256)), "bias": f32((256,)), "down": f32((256, 64))}
    args = [dict(layer) for _ in range(8)], f32((32, 64))
    traced = trace_call(jax.jit(step), split_call(step, args, {}, (), ()), args, {}, "step")
    planner = Planner(traced.module, MESH, MACHINES["tpu_v5e"])
    models, game = planner.game(MESH.names)
    known = dict(named_strategies(MESH, MESH.names, game.targets))
    path = tuple(known["BP(data)+MP(model)"])
    regions = game.model.memory.regions
    played = len(list(play(game, path)))
    found = [regions.runs(item) for item in reductions(game.state.partition())]
    rewind(game, played)
    assert found == [1, 1]  # 8 each without the sums over layers
    state = State(planner.graph, planner.mesh, memo=planner.memo)
    models.lifter.lift(game, path, state)
    assert len(reductions(state.partition())) == 1
