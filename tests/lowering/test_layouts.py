"""Gradients are held to the layout of the state that they update, look-ups to rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding

import partir_search as ps
from partir_search.lowering import shard_map
from partir_search.lowering.local_ir import LocalOp, LocalProgram
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.scheduling.layouts import lookups, state_gradients
from partir_search.lowering.scheduling.schedule import schedule_for
from partir_search.lowering.traits import NEUTRAL
from partir_search.simulator.target.known_traits import PLATFORMS

BATCH, WIDTH, VOCAB = 16, 256, 1024
TACTICS = [
    ps.ManualPartition({"x": 0}, axis="batch"),
    ps.ManualPartition({"w": 0, "m": 0}, axis="batch"),
]


def step(w: Any, m: Any, x: Any) -> Any:
    """The gradient of `w` is the transpose of a product."""

    def loss(w: Any) -> Any:
        h = x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)
        return (h.astype(jnp.float32) ** 2).mean()

    g = jax.grad(loss)(w)
    g = g / jnp.sqrt(1.0 + (g**2).sum())
    m = 0.9 * m + g
    return w - 0.1 * m, m


def arguments() -> list[Any]:
    random = np.random.default_rng(0)
    shapes = [(WIDTH, VOCAB), (WIDTH, VOCAB), (BATCH, WIDTH)]
    return [random.normal(size=s).astype(np.float32) for s in shapes]


def planned(mesh: Any, *args: Any, fn: Any = step, tactics: Any = TACTICS) -> LocalProgram:
    partitioned = ps.auto_partition(
        mesh, schedule=tactics, machine="tpu_v5e", donate_argnums=(0, 1)
    )(fn)
    return partitioned.plan(*args).program


def test_a_gradient_meets_the_state_where_it_takes_its_shape(mesh: jax.sharding.Mesh) -> None:
    """Once for parameter and moment, at the transpose of the product, scattered or not."""
    program = planned(mesh, *arguments())
    (met,) = state_gradients(program, NEUTRAL).items()
    at, (local,) = met
    n = mesh.shape["batch"]
    assert local.shape == (WIDTH // n, VOCAB)
    made = program.body.steps[at]
    sources = [made.source] if hasattr(made, "source") else list(made.ins)
    assert [s.shape for s in sources] != [local.shape]  # scattered or transposed here
    undonated = ps.auto_partition(mesh, schedule=TACTICS, machine="tpu_v5e")(step)
    assert not state_gradients(undonated.plan(*arguments()).program, NEUTRAL)


def test_the_transpose_of_a_square_gradient_is_seen(mesh: jax.sharding.Mesh) -> None:
    """Its shape is the same before and after."""
    shapes = [(WIDTH, WIDTH), (WIDTH, WIDTH), (BATCH, WIDTH)]
    args = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
    program = planned(mesh, *args, tactics=TACTICS[:1])
    ((at, (local,)),) = state_gradients(program, NEUTRAL).items()
    made = program.body.steps[at]
    assert isinstance(made, LocalOp)
    (source,) = (x for x in made.ins if isinstance(x, LocalValue))
    assert source.shape == local.shape
    assert made.op.prim == "transpose"


def test_what_tiles_do_not_fill_is_left_alone(mesh: jax.sharding.Mesh) -> None:
    def heads(w: Any, m: Any, x: Any) -> Any:
        g = jax.grad(lambda w: (jnp.einsum("bi,ihd->bhd", x, w) ** 2).mean())(w)
        m = 0.9 * m + g
        return w - 0.1 * m, m

    shapes = [(WIDTH, 4, 64), (WIDTH, 4, 64), (BATCH, WIDTH)]
    args = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
    assert not state_gradients(planned(mesh, *args, fn=heads), NEUTRAL)


def test_held_layouts_change_no_number(mesh: jax.sharding.Mesh) -> None:
    """The program as it is emitted for TPUs, run on CPU devices."""
    program, args = planned(mesh, *arguments()), arguments()
    specs = [NamedSharding(mesh, s) for s in shard_map.argument_specs(program)]
    placed = jax.device_put(args, specs)
    held, plain = (
        jax.jit(shard_map.sharded(schedule_for(program, traits), mesh)).lower(*placed)
        for traits in (PLATFORMS["tpu"], NEUTRAL)
    )
    assert held.as_text().count("@LayoutConstraint") == 1
    assert "@LayoutConstraint" not in plain.as_text()
    for got, want in zip(held.compile()(*placed), step(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-4)


@pytest.mark.compilers
def test_state_is_not_copied_to_the_layout_of_its_gradient() -> None:
    """XLA:TPU copied parameter and moment, transposed, when the step began and when it ended."""
    shapes = [(2048, 8192), (2048, 8192), (4096, 2048)]
    args = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
    plan = ps.auto_partition(
        AbstractMesh((8,), ("batch",)), schedule=TACTICS, machine="tpu_v5e", donate_argnums=(0, 1)
    )(step).plan(*args)
    found = plan.verify("tpu_v5e:2x4")
    assert found.confirmed, str(found)
    turned = [x for x in found.hlo.splitlines() if "f32[256,8192]{0,1" in x and " copy(" in x]
    assert not turned


def rows_of(table: Any, at: Any, first: Any) -> Any:
    """What `at` finds, and a stretch that begins at `first`."""
    return table[at], jax.lax.dynamic_slice_in_dim(table, first, 64)


@pytest.mark.parametrize(("width", "held"), [(256, 1), (64, 0)])
def test_looked_up_rows_stay_rows(mesh: jax.sharding.Mesh, width: int, held: int) -> None:
    """Where rows fill tiles; a stretch of a table is cut out of it as it lies."""
    random = np.random.default_rng(0)
    args = [random.normal(size=(VOCAB, width)).astype(np.float32), random.integers(0, VOCAB, 64), 3]
    tactics = [ps.ManualPartition({"at": 0}, axis="batch")]
    program = planned(mesh, *args, fn=rows_of, tactics=tactics)
    assert sum(map(len, lookups(program, NEUTRAL).values())) == held
    specs = [NamedSharding(mesh, s) for s in shard_map.argument_specs(program)]
    placed = jax.device_put(args, specs)
    scheduled = schedule_for(program, PLATFORMS["tpu"])
    lowered = jax.jit(shard_map.sharded(scheduled, mesh)).lower(*placed)
    assert lowered.as_text().count("@LayoutConstraint") == held
    for got, want in zip(lowered.compile()(*placed), rows_of(*args), strict=True):
        np.testing.assert_array_equal(got, want)
