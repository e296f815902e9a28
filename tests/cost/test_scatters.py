"""Scatters, look-ups, slices and gathers as XLA:TPU compiles them."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.ir.partition import Layout
from partir_search.lowering.local_ir import Reshard
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.localize import localize
from partir_search.lowering.reshard_steps import Slice
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.target.machine import Machine
from tests.cost.test_stored_operands import more
from tests.support import ROUND, cost_of, module_of, state_of, tile_arg

ROWS = jax.ShapeDtypeStruct((4096,), jnp.int32)


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def bytes_moved(fn: Any, *args: Any, machine: Machine, tiled: tuple[int, int] | None = None) -> Any:
    """Bytes of traffic of all kernels on one device; the 4-way axis tiles a dim of argument 0."""
    state = state_of(module_of(fn, *args))
    if tiled is not None:
        tile_arg(state, *tiled, "model")
    partition = state.partition()
    model = CostModel(state.graph.module, state.graph.rules, machine)
    return model.load(partition).roofline.moved.sum()


@pytest.mark.parametrize(("dims", "copies"), [((64, 128), 1), ((1, 8192), 0), ((8192,), 0)])
def test_single_elements_are_scattered_into_one_dim(dims: tuple[int, ...], copies: int) -> None:
    """The result f32[64, 128] is a copy of f32[8192]; rows are not."""

    def added(indices: int) -> float:
        args = f32(*dims), *[jax.ShapeDtypeStruct((512,), jnp.int32)] * indices
        return more(lambda x, *at: jnp.sin(x).at[at].set(1.0), *args, trait="scatters_into_one_dim")

    assert added(len(dims)) == copies * 4 * 8192
    assert added(1) == 0  # one index: rows


@pytest.mark.parametrize(("width", "copies"), [(128, 0), (64, 2), (96, 2)])
def test_tables_of_narrow_rows_are_copied(width: int, copies: int) -> None:
    """A look-up reads 128 lanes a row: the table and the rows taken are read and written again."""

    def look_up(table: Any, rows: Any) -> Any:
        return table[rows]

    args = f32(65536, width), ROWS
    plain = bytes_moved(look_up, *args, machine=ROUND)
    tiled = bytes_moved(look_up, *args, machine=ROUND.with_traits(tile_lanes=128))
    assert tiled - plain == copies * (65536 + 4096) * 128 * 4


def test_tiles_make_rows_narrow() -> None:
    """Rows of 256 numbers in four parts of 64."""

    def look_up(table: Any, rows: Any) -> Any:
        return table[rows]

    args, lanes = (f32(65536, 256), ROWS), ROUND.with_traits(tile_lanes=128)
    for tiled, copies in (((0, 0), 0), ((0, 1), 2)):
        plain = bytes_moved(look_up, *args, machine=ROUND, tiled=tiled)
        more = bytes_moved(look_up, *args, machine=lanes, tiled=tiled) - plain
        assert more == copies * (65536 + 4096) * 128 * 4


def test_kernels_that_look_up_rows_do_not_read_their_table() -> None:
    """Rows of a large table, which a kernel multiplies with x, count as read; a table of fewer rows
    is read whole.
    """

    def fn(table: Any, rows: Any, x: Any) -> Any:
        return jnp.tanh(table)[rows] * x

    for table, read in ((65536, 4096), (1024, 1024)):
        args = f32(table, 128), ROWS, f32(4096, 128)
        moved = bytes_moved(fn, *args, machine=ROUND.with_traits(fuses_lookups=True))
        assert moved == (read + 2 * 4096) * 128 * 4 + 4096 * 4


def test_updates_are_stored_for_their_scatter() -> None:
    """Each of four slices of a sum is scattered: its scatter reads the slice, not the sum."""

    def fn(x: Any, y: Any, rows: Any) -> list[Any]:
        parts = jnp.split(x + y, 4)
        return [jnp.zeros((1024, 128)).at[rows].add(part) for part in parts]

    module = module_of(fn, f32(16384, 128), f32(16384, 128), ROWS)
    rules = state_of(module).graph.rules
    for stores in (False, True):
        machine = ROUND.with_traits(materializes_scatter_updates=stores)
        kernels = CostModel(module, rules, machine).time.kernels
        read = [set(kernels.values(k)) for k in range(len(kernels.op))]
        scatters = [op for op in module.body.ops if op.prim == "scatter-add"]
        of = {op: read[kernels.op.tolist().index(op.id)] for op in scatters}
        assert len(of) == 4
        assert all((op.operands[-1].id in values) is stores for op, values in of.items())


def test_values_sliced_twice_are_stored() -> None:
    """A clipped gradient is read by the updates of both moments: a slice for one counts 64 KB."""

    def fn(gradient: Any, m: Any, v: Any) -> tuple[Any, Any]:
        clipped = gradient * jax.lax.rsqrt(jnp.sum(gradient**2))
        return 0.9 * m + 0.1 * clipped, 0.9 * v + 0.1 * clipped**2

    args = f32(128, 128), f32(128, 128), f32(128, 128)
    state = state_of(module_of(fn, *args))
    module, rules = state.graph.module, state.graph.rules
    twice = ROUND.with_traits(stores_values_sliced_twice=True)
    facts = CostModel(module, rules, twice).facts
    value = next(v for v in module.values if facts.forked[v.id])
    tile: Layout = ((state.mesh.index("model"),), ())
    whole = LocalValue(-1, value, ((), ()), (), (128, 128))
    part = LocalValue(-1, value, tile, (), (32, 128))
    step = Slice(dim=0, axes=tile[0], layout=tile, partial=())
    move = Reshard(step, whole, part, state.graph.module.body.ops[-1])
    for machine, copied in ((ROUND, 0), (twice, 128 * 128 * 4)):
        assert CostModel(module, rules, machine).costs(state.mesh).cost(move).copied == copied


def test_gathers_hide_behind_dots_alone() -> None:
    """A weight is gathered while elementwise kernels run, or dots."""

    def fn(x: Any, a: Any, w: Any) -> Any:
        for _ in range(3):
            x = jax.lax.optimization_barrier(jnp.exp(x) if a is None else x @ a)
        return x @ w

    mesh = AbstractMesh((4,), ("model",))
    tactic = [
        ps.ManualPartition({"x": 0}, axis="model"),
        ps.ManualPartition({"w": 0}, axis="model"),
    ]
    for a, hides in ((f32(256, 256), True), (None, False)):
        args = f32(65536, 256), a, f32(256, 256)
        plan = ps.auto_partition(mesh, schedule=tactic, machine=ROUND)(fn).plan(*args)
        anything, dots = (
            _evaluated(
                plan,
                ROUND.with_traits(
                    async_all_gather="arguments", hides_gathers_behind_dots_alone=alone
                ),
            ).collective_seconds
            for alone in (False, True)
        )
        assert plan.collective_counts["all_gather"] == 1
        assert (dots == anything) is hides


def _evaluated(plan: ps.Plan, machine: Machine) -> Any:
    partition = plan.program.partition
    model = CostModel(partition.module, partition.rules, machine)
    return model.evaluate(localize(partition))


def test_atomic_additions_to_rows() -> None:
    """Rows added at indices cost as their traffic and so many bytes per element; one number per
    row, and rows that overwrite, cost no more.
    """
    each = ROUND.with_traits(atomic_update_bytes={"float32": 15.0})
    rows = jnp.zeros(4096, jnp.int32)

    def added(table: Any, rows: Any, updates: Any) -> Any:
        return table.at[rows].add(updates)

    def written(table: Any, rows: Any, updates: Any) -> Any:
        return table.at[rows].set(updates)

    for fn, expected in ((added, 15.0), (written, 0.0)):
        state = state_of(module_of(fn, f32(1024, 64), rows, f32(4096, 64)))
        more = cost_of(state, each).seconds - cost_of(state, ROUND).seconds
        wanted = expected * 4096 * 64 / ROUND.attained_hbm_bytes_per_s
        assert more == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("bag", "width", "full"),
    [
        ((20,), 128, 24),
        ((24,), 128, 0),
        ((2, 6), 128, 8),
        ((4,), 128, 0),
        ((20,), 64, 0),
        ((), 128, 0),
    ],
)
def test_updates_of_bags_of_rows_are_joined_in_a_copy(
    bag: tuple[int, ...], width: int, full: int
) -> None:
    """Rows [256, *bag, width] are added to a table; the bag's last dim is padded to `full`
    sublanes, and the padded array is live beside the rows when they are made.
    """

    def add(table: Any, at: Any, x: Any) -> Any:
        return table.at[at].add(jnp.tanh(x))

    at = jax.ShapeDtypeStruct((256, *bag), jnp.int32)
    state = state_of(module_of(add, f32(16, width), at, f32(256, *bag, width)))
    partition = state.partition()
    peaks = []
    for sublanes in (1, 8):
        traits = {"materializes_scatter_updates": True, "tile_lanes": 128}
        machine = ROUND.with_traits(**traits, tile_sublanes=sublanes)
        model = CostModel(state.graph.module, state.graph.rules, machine)
        found = model.simulate(localize(partition))
        peaks.append(float(found.temporaries.bytes_at.max()))
    rows = 256 * math.prod(bag[:-1]) * width * 4
    assert peaks == [0.0, rows * full]
