"""Cumulative ops along a tiled dim: devices exchange totals of blocks, and nothing else."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType

import partir_search as ps
from partir_search.ir.mesh import MeshShape
from partir_search.passes.block_scans import with_block_scans
from partir_search.passes.pad import pad_module
from partir_search.passes.pad_choice import Pad
from partir_search.rules import RuleTable
from tests.support import check_partition, module_of, state_of, tile_arg

Step = Callable[[Any], Any]
ROWS, COLS = 256, 6
X = jax.random.normal(jax.random.key(0), (ROWS, COLS))
GRID = MeshShape(("data", "model"), (4, 2))


def squares_of_sums(x: Any) -> Any:
    return (jnp.cumsum(x, 0) ** 2).sum()


def step_of_sums(x: Any) -> Any:
    return jnp.cumsum(jnp.sin(x), 0) * 2


def in_a_loop(x: Any) -> Any:
    return lax.scan(lambda c, _: (jnp.cumsum(jnp.sin(c), 0), None), x, None, length=3)[0]


def box(x: Any) -> Any:
    sums = jnp.cumsum(x, 0)
    return sums - jnp.roll(sums, 3, 0)


STEPS: dict[str, tuple[Step, int]] = {  # with the number of cumulative ops that run
    "cumsum": (lambda x: jnp.cumsum(jnp.sin(x), 0) * 2, 1),
    "reverse": (lambda x: lax.cumsum(x, 0, reverse=True), 1),
    "gradient": (jax.grad(squares_of_sums), 2),
    "cumprod": (lambda x: jnp.cumprod(1 + x / 99, 0), 1),
    "cummax": (lambda x: lax.cummax(x, 0, reverse=True), 1),
    "cummin": (lambda x: lax.cummin(x, 0), 1),
    "cumlogsumexp": (lambda x: lax.cumlogsumexp(x, 0, reverse=True), 1),
    "integers": (lambda x: jnp.cumsum((x > 0).astype(jnp.int32), 0), 1),
    "extrema of integers": (lambda x: lax.cummax((x * 9).astype(jnp.int8), 0), 1),
    "other dim": (lambda x: jnp.cumsum(x.T, 1), 1),
    "all elements": (lambda x: jnp.cumsum(x), 1),
    "of a product": (lambda x: jnp.cumsum(x @ jnp.ones((COLS, COLS)), 0), 1),
    "in a loop": (in_a_loop, 3),
    "box filter": (box, 1),
}


@pytest.mark.devices
@pytest.mark.parametrize("axes", [("data",), ("data", "model")], ids="+".join)
@pytest.mark.parametrize("name", STEPS)
def test_equals_plain(name: str, axes: tuple[str, ...]) -> None:
    """No collective is larger than the totals of 8 blocks."""
    step, runs = STEPS[name]
    mesh = jax.make_mesh((4, 2), ("data", "model"), (AxisType.Auto,) * 2)
    schedule = [ps.ManualPartition({"x": 0}, axis=axis) for axis in axes]
    partitioned = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(step)
    plan = partitioned.plan(X)
    gathers = [c for c in plan.collectives if c.kind == "all_gather"]
    assert gathers
    assert plan.cost.bytes_by_kind["all_gather"] <= runs * 8 * COLS * 4
    moved = plan.collective_counts
    assert sum(moved.values()) <= runs + (name == "box filter")
    assert ps.stablehlo_counts(partitioned.lower(X).as_text()) == moved
    for a, b in zip(
        jax.tree.leaves(partitioned(X)), jax.tree.leaves(jax.jit(step)(X)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_partial_sums_go_through() -> None:
    """A cumulative sum of a product's summands is taken before they are summed."""

    def step(x: Any, w: Any) -> Any:
        return jnp.cumsum(x @ w, 0)

    args = X, jnp.ones((COLS, 4))
    module = with_block_scans(module_of(step, *args), GRID)
    assert any(op.prim == "scan_blocks" for op in module.ops)
    state = state_of(module, GRID)
    tile_arg(state, 0, 1, "model")
    tile_arg(state, 0, 0, "data")
    check_partition(state.partition(), step, args)


@pytest.mark.parametrize("reverse", [False, True])
def test_more_blocks_than_the_program_says(reverse: bool) -> None:
    """Blocks of a padded dim change nothing."""

    def step(x: Any) -> Any:
        return lax.cumsum(x, 0, reverse=reverse)

    module = with_block_scans(module_of(step, X), GRID)
    (joined,) = (op for op in module.ops if op.prim == "scan_blocks")
    pads = [Pad(joined.results[0].name, 0, 12)]
    padded = pad_module(module, list(map(RuleTable(), module.ops)), pads)
    state = state_of(padded, GRID)
    check_partition(state.partition(), step, [X])
    state.tile(state.graph.class_of[padded.value_names()[joined.results[0].name].id], 0, (0,))
    check_partition(state.partition(), step, [X])


@pytest.mark.parametrize("rows", [255, 129, 32])
def test_dims_that_are_not_tiled_in_blocks(rows: int) -> None:
    module = module_of(lambda x: jnp.cumsum(x, 0), jnp.ones((rows, 4)))
    assert with_block_scans(module, GRID) is module


def test_a_plan_replays_on_another_mesh(tmp_path: pathlib.Path) -> None:
    """The number of blocks follows the mesh, the saved program does not."""
    x = jax.ShapeDtypeStruct(X.shape, X.dtype)
    rows = [ps.ManualPartition({"x": 0}, axis="data")]
    first = ps.auto_partition(AbstractMesh((4, 2), ("data", "model")), machine="cpu", schedule=rows)
    first(step_of_sums).plan(x).save(tmp_path / "plan.json")
    for devices in (2, 8):
        mesh = AbstractMesh((devices, 1), ("data", "model"))
        saved = ps.load_plan(tmp_path / "plan.json")
        plan = ps.auto_partition(mesh, machine="cpu", schedule=saved)(step_of_sums).plan(x)
        assert plan.collective_counts["all_gather"] == 1
        assert max(c.bytes for c in plan.collectives) <= devices * COLS * 4
