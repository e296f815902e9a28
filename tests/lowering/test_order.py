"""Regathers and reductions wait for gradients that read much, and products for the chain of the
backward pass; of rings see test_rings.py.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

import partir_search as ps
from partir_search.lowering import shard_map
from partir_search.lowering.local_ir import LocalOp, LocalProgram, Reshard
from partir_search.lowering.reshard_steps import Reduction
from partir_search.lowering.scheduling.schedule import schedule_for
from partir_search.simulator.target.known_traits import PLATFORMS

LAYERS, WIDTH = 6, 16
ZERO_3 = [
    ps.ManualPartition({"x": 0}, axis="batch"),
    ps.ManualPartition({f"w/{i}": 0 for i in range(LAYERS)}, axis="batch"),
]

TENSOR = [ps.ManualPartition({f"w/{i}": 1 - i % 2 for i in range(LAYERS)}, axis="model")]
DATA_AND_TENSOR = [ps.ManualPartition({"x": 0}, axis="batch"), *TENSOR]


def step(w: list[Any], x: Any) -> list[Any]:
    """Each layer's gradient is a product that nothing else waits for."""

    def loss(w: list[Any]) -> Any:
        h = x
        for matrix in w:
            h = jnp.tanh(h @ matrix)
        return (h.astype(jnp.float32) ** 2).mean()

    return [a - 0.1 * g for a, g in zip(w, jax.grad(loss)(w), strict=True)]


def arguments(batch: int) -> tuple[list[Any], Any]:
    random = np.random.default_rng(0)
    w = [random.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 4 for _ in range(LAYERS)]
    return w, random.normal(size=(batch, WIDTH)).astype(np.float32)


def planned(mesh: Any, *args: Any, schedule: Any = ZERO_3) -> LocalProgram:
    partitioned = ps.auto_partition(mesh, schedule=schedule, machine="tpu_v5e", donate_argnums=0)
    return partitioned(step).plan(*args).program


def waits(program: LocalProgram) -> dict[str, list[str]]:
    """Sources of collectives that wait, and what they wait for."""
    found = [item for item in program.body.steps if item.scheduling.after]
    assert all(isinstance(item, Reshard) for item in found)
    return {
        item.source.value.name: [x.value.name for x in item.scheduling.after]
        for item in found
        if isinstance(item, Reshard)
    }


def test_gathers_wait_for_the_gradient_before_the_last(mesh: jax.sharding.Mesh) -> None:
    program = planned(mesh, *arguments(4096))
    found = waits(program)
    made = [s for names in found.values() for s in names]
    assert len(found) == len(made) == len(set(made)) == LAYERS - 1 - 2
    again = [m for m in program.body.steps if isinstance(m, Reshard) and m.regather]
    assert list(found) == [m.source.value.name for m in again[2:]]


def test_gathers_do_not_wait_for_short_products(mesh: jax.sharding.Mesh) -> None:
    assert not waits(planned(mesh, *arguments(64)))


def test_waiting_changes_no_number(mesh: jax.sharding.Mesh) -> None:
    """The program as it is emitted for TPUs, run on CPU devices."""
    args = arguments(4096)
    program = planned(mesh, *args)
    specs = [NamedSharding(mesh, s) for s in shard_map.argument_specs(program)]
    placed = jax.device_put(jax.tree.leaves(args), specs)
    tpu = PLATFORMS["tpu"]
    waiting, free = (
        jax.jit(shard_map.sharded(schedule_for(program, traits), mesh)).lower(*placed)
        for traits in (tpu, dataclasses.replace(tpu, delays_regathers=False))
    )
    barriers = [t.as_text().count("optimization_barrier") for t in (waiting, free)]
    assert barriers[0] - barriers[1] == LAYERS - 1 - 2
    for got, want in zip(waiting.compile()(*placed), step(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("schedule", [TENSOR, DATA_AND_TENSOR])
def test_reductions_wait_for_gradients_made_before(mesh: jax.sharding.Mesh, schedule: Any) -> None:
    """Partial sums of every second layer's input wait for the gradients of both layers above."""
    args = arguments(4096)
    program = planned(mesh, *args, schedule=schedule)
    found = waits(program)
    assert [len(names) for names in found.values()] == [2] * (LAYERS // 2 - 1)
    readers = {
        item.source.value.name: item for item in program.body.steps if isinstance(item, Reshard)
    }
    assert all(isinstance(readers[name].step, Reduction) for name in found)
    assert not waits(planned(mesh, *arguments(64), schedule=schedule))


@pytest.mark.parametrize("schedule", [TENSOR, DATA_AND_TENSOR])
def test_waited_gradients_are_read_behind_the_barrier(
    mesh: jax.sharding.Mesh, schedule: Any
) -> None:
    """XLA removes what a barrier returns to no reader: gradients reduced before, for example."""
    args = arguments(4096)
    program = schedule_for(planned(mesh, *args, schedule=schedule), PLATFORMS["tpu"])
    specs = [NamedSharding(mesh, s) for s in shard_map.argument_specs(program)]
    placed = jax.device_put(jax.tree.leaves(args), specs)
    jitted = jax.jit(shard_map.sharded(program, mesh))
    (mapped,) = jitted.trace(*placed).jaxpr.jaxpr.eqns
    inner = mapped.params["jaxpr"]
    read = {v for eqn in inner.eqns for v in eqn.invars if isinstance(v, jax.extend.core.Var)}
    barriers = [eqn for eqn in inner.eqns if eqn.primitive.name == "optimization_barrier"]
    waiting = [eqn for eqn in barriers if len(eqn.outvars) == 3]
    assert len(waiting) == LAYERS // 2 - 1
    assert all(read.issuperset(eqn.outvars) for eqn in waiting)
    for got, want in zip(jitted(*placed), step(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_gradients_are_computed_first_without_collectives_beside(mesh: jax.sharding.Mesh) -> None:
    """GPUs: with data parallelism each gradient but the last, which no product follows."""
    args = arguments(4096)
    data = [ps.ManualPartition({"x": 0}, axis="batch")]
    gpu = PLATFORMS["gpu"]
    program = schedule_for(planned(mesh, *args, schedule=data), gpu)
    first = [item for item in program.body.steps if item.scheduling.before]
    assert len(first) == LAYERS - 1
    for item in first:
        assert isinstance(item, LocalOp)
        assert set(item.scheduling.before or ()) <= set(item.ins)
        assert item.op.results[0].type.shape == (WIDTH, WIDTH)
    assert not marked(planned(mesh, *arguments(64), schedule=data), gpu)
    specs = [NamedSharding(mesh, s) for s in shard_map.argument_specs(program)]
    placed = jax.device_put(jax.tree.leaves(args), specs)
    ordered = jax.jit(shard_map.sharded(program, mesh))(*placed)
    for got, want in zip(ordered, step(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_gradients_beside_collectives_keep_their_order(mesh: jax.sharding.Mesh) -> None:
    """Tensor parallelism reduces every second gradient of an activation."""
    program = planned(mesh, *arguments(4096), schedule=TENSOR)
    sent = [
        item.source.value.name
        for item in program.body.steps
        if isinstance(item, Reshard) and item.op is not None and item.op.backward
    ]
    assert len(sent) == LAYERS // 2 - 1
    assert len(marked(program, PLATFORMS["gpu"])) == LAYERS // 2


def marked(program: LocalProgram, traits: Any) -> list[Any]:
    return [x for x in schedule_for(program, traits).body.steps if x.scheduling.before]


def test_products_of_one_early_gradient_wait_for_the_chain(mesh: jax.sharding.Mesh) -> None:
    """The gradient of a sum of skipped outputs is ready before the chain of layers begins."""
    count, shape = 5, (WIDTH, WIDTH)

    def train(w: list[dict[str, Any]], x: Any) -> Any:
        def loss(w: list[dict[str, Any]]) -> Any:
            h, total = x, 0.0
            for p in w:
                a = jnp.tanh(h @ p["up"])
                h = h + a @ p["down"]
                total = total + a @ p["skip"]
            return (jnp.tanh(total) ** 2).mean()

        return jax.tree.map(lambda a, g: a - g, w, jax.grad(loss)(w))

    random = np.random.default_rng(0)
    names = ("up", "down", "skip")
    w = [{n: random.normal(size=shape).astype(np.float32) / 4 for n in names} for _ in range(count)]
    args = w, arguments(64)[1]
    dims = {f"w/{i}/{name}": int(name == "up") for i in range(count) for name in names}
    tensor = [ps.ManualPartition(dims, axis="model")]
    plan = ps.auto_partition(mesh, schedule=tensor, machine="tpu_v5e")(train).plan(*args)
    waiting = [x for x in plan.program.body.steps if x.scheduling.operands_after]
    assert len(waiting) == count - 2  # the last two could precede one collective at most
    awaited = [x.scheduling.operands_after[0].value.name for x in waiting]
    sent = [
        item.source.value.name
        for item in plan.program.body.steps
        if isinstance(item, Reshard) and item.op is not None and item.op.backward
    ]
    assert awaited == sent[: count - 2]
    program = schedule_for(plan.program, PLATFORMS["tpu"])
    specs = [NamedSharding(mesh, s) for s in shard_map.argument_specs(program)]
    placed = jax.device_put(jax.tree.leaves(args), specs)
    found = jax.jit(shard_map.sharded(program, mesh))(*placed)
    for got, want in zip(found, jax.tree.leaves(train(*args)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
