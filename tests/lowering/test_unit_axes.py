"""Rings, collective matmuls and context parallelism on mesh axes of one device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

import partir_search as ps
from partir_search.ir.axis_options import Modes
from partir_search.ir.skewed_schedule import FORMS
from partir_search.lowering.local_ir import RingReshard
from partir_search.lowering.localize import localize
from tests.rings import mlp, mlp_state, square
from tests.support import assert_same, check_partition, floats_of

pytestmark = pytest.mark.devices
SHAPES = (6, 9), (9, 6), (12, 6)


def mesh_of(*sizes: int) -> jax.sharding.Mesh:
    names = ("r", "c", "rest")[: len(sizes)]
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))


def check(tactics: list[Any], mesh: jax.sharding.Mesh, fn: Any, *args: Any) -> ps.Plan:
    """Runs a function partitioned and plain; predicted collectives are emitted ones."""
    partitioned = ps.auto_partition(mesh, schedule=tactics, machine="tpu_v5e")(fn)
    plan: ps.Plan = partitioned.plan(*args)
    assert_same(jax.tree.leaves(partitioned(*args)), jax.tree.leaves(jax.jit(fn)(*args)), 1e-4)
    assert ps.stablehlo_counts(partitioned.lower(*args).as_text()) == plan.collective_counts
    return plan


@pytest.mark.parametrize("form", FORMS)
def test_ring_of_one_turn(form: str) -> None:
    """One turn per product, and nothing is sent."""
    args = floats_of(*SHAPES)
    state = mlp_state(square(1), args)
    state.modes = Modes(ring_schedules={2: form})
    partition = state.partition()
    assert any(partition.ring(op) for op in state.graph.module.ops)
    check_partition(partition, mlp, args)
    assert not any(isinstance(m, RingReshard) for m, _ in localize(partition).reshards())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sizes", [(1, 1), (1, 1, 4)])
def test_spatial_temporal(form: Any, sizes: tuple[int, ...]) -> None:
    tactics: list[Any] = [ps.SpatialTemporal(("r", "c"), form=form)]
    if len(sizes) == 3:
        tactics.insert(0, ps.ManualPartition({"x": 0}, "rest"))
    plan = check(tactics, mesh_of(*sizes), mlp, *floats_of(*SHAPES))
    assert plan.mesh_shape.diagonal_names == ("r~c",)


@pytest.mark.parametrize("sizes", [(1, 4), (4, 1)])
def test_collective_matmul(sizes: tuple[int, int]) -> None:
    """A window over one device beside a gather over four, or the other way round."""

    def fn(x: Any, w: Any) -> Any:
        return x @ w

    tactics = [
        ps.ManualPartition({"x": 0}, "r"),
        ps.ManualPartition({"w": 1}, "c"),
        ps.CollectiveMatmul(("r", "c")),
    ]
    check(tactics, mesh_of(*sizes), fn, *floats_of((8, 8), (8, 8)))


@pytest.mark.parametrize("sizes", [(4, 1), (1, 4)])
def test_context_parallelism(sizes: tuple[int, int]) -> None:
    """Ring attention of one block, or of four."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)

    tactics = [ps.ManualPartition({"q": 0}, "r"), ps.ContextParallel("c")]
    check(tactics, mesh_of(*sizes), attention, *floats_of(*[(4, 8, 2, 4)] * 3))
