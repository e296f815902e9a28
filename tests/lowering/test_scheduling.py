"""Scheduling passes: attributes in the text, one schedule per compiler, the same cost."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType

import partir_search as ps
from models.catalog import MODELS
from partir_search.lowering.local_ir import LocalProgram, Reshard
from partir_search.lowering.local_printer import print_local
from partir_search.lowering.localize import localize
from partir_search.lowering.scheduling.schedule import SCHEDULING, schedule_for
from partir_search.lowering.shard_map import sharded
from partir_search.lowering.verify_local import InvalidLocalProgram, verify_local
from partir_search.plan.pass_record import PIPELINE
from partir_search.simulator.target.known_traits import PLATFORMS

MESH = AbstractMesh((2,), ("batch",))
TPU, CPU = PLATFORMS["tpu"], PLATFORMS["cpu"]
LAYERS = 6


def step(w: list[Any], out: Any, x: Any, labels: Any) -> tuple[list[Any], Any, Any]:
    """One step of SGD on a classifier, weights of layers first."""

    def loss(w: list[Any], out: Any) -> Any:
        h = x
        for matrix in w:
            h = jnp.sin(h @ matrix)
        return optax.softmax_cross_entropy_with_integer_labels(h @ out, labels).mean()

    value, (gradients, last) = jax.value_and_grad(loss, (0, 1))(w, out)
    new = [a - 0.1 * g for a, g in zip(w, gradients, strict=True)]
    return new, out - 0.1 * last, value


@functools.cache
def planned() -> ps.Plan:
    """All parameters sharded (ZeRO-3) and donated."""
    shape = jax.ShapeDtypeStruct
    args = [shape((128, 128), jnp.float32)] * LAYERS, shape((128, 1024), jnp.float32)
    data = shape((65536, 128), jnp.float32), shape((65536,), jnp.int32)
    sharded = {f"w/{i}": 0 for i in range(LAYERS)} | {"out": 1}
    tactics = [
        ps.ManualPartition({"x": 0, "labels": 0}, axis="batch"),
        ps.ManualPartition(sharded, axis="batch"),
    ]
    decorate = ps.auto_partition(MESH, machine="tpu_v5e", schedule=tactics, donate_argnums=(0, 1))
    return decorate(step).plan(*args, *data)


def unscheduled() -> LocalProgram:
    return localize(planned().partition)


def scheduled(traits: Any) -> str:
    return print_local(schedule_for(unscheduled(), traits))


@pytest.mark.parametrize(
    "mark",
    ["after=[", "before=[", "barrier=[", "layout=row_major["],
)
def test_schedule_is_printed(mark: str) -> None:
    assert mark in planned().local_ir()
    assert mark not in print_local(unscheduled())


def test_every_attribute_is_a_pass() -> None:
    """A program without one pass lacks the attributes of this pass, and of no further one."""
    of_pass = {
        "delay_gathers": "after=[",
        "hoist_early_reads": "before=[",
        "prevent_cse": "barrier=[",
        "pin_update_layouts": "layout=row_major[",
    }
    for left_out in of_pass:
        program = unscheduled()
        for name, run in SCHEDULING.items():
            program = program if name == left_out else run(program, TPU)
        text = print_local(program)
        assert {name for name, mark in of_pass.items() if mark not in text} == {left_out}


def test_compilers_have_their_own_schedules() -> None:
    """TPUs pin layouts, CPUs scatter the leading dim; one schedule replaces another."""
    tpu, cpu = scheduled(TPU), scheduled(CPU)
    assert "tiles_first" in cpu
    assert "tiles_first" not in tpu
    assert "row_major" not in cpu
    there = schedule_for(unscheduled(), TPU)
    assert schedule_for(there, TPU) is there
    back = schedule_for(schedule_for(there, CPU), TPU)
    assert print_local(back) == tpu


def test_results_in_donated_buffers_come_last() -> None:
    """ZeRO's gathered parameters wait for the arguments whose buffers they take."""
    entry, texts = MODELS["transformer-tiny"], []
    for donated in ((0,), ()):
        decorate = ps.auto_partition(MESH, machine="tpu_v5e", donate_argnums=donated)
        plan = decorate(entry.step).known_plans(*entry.abstract_args(8))["BP(batch)+Z2"]
        texts.append(plan.local_ir().splitlines()[-2])
        gathered = plan.collective_counts["all_gather"]
        assert len(plan.program.results_after) == (gathered if donated else 0)
    assert " after %state.params" in texts[0]
    assert " after %" not in texts[1]


def test_programs_are_emitted_as_scheduled() -> None:
    with pytest.raises(AssertionError, match="scheduled before"):
        sharded(unscheduled(), MESH)
    (record,) = (r for r in planned().passes if r.name == "emit")
    assert "shard_map" in record.text()
    assert record.ops_before == planned().program.size


@pytest.mark.parametrize(
    "name", ["transformer-tiny", pytest.param("moe-tiny", marks=pytest.mark.long)]
)
def test_simulator_reads_the_scheduled_program(name: str) -> None:
    """Order and layouts cost nothing: traits of a compiler stand for them."""
    entry = MODELS[name]
    mesh = AbstractMesh((2, 2), ("batch", "model"))
    known = ps.auto_partition(mesh, machine="tpu_v5e", rings=True)(entry.step)
    for plan in known.known_plans(*entry.abstract_args(8)).values():
        assert plan.program.traits is not None
        assert plan.simulation.cost == plan.cost


def test_order_is_verified() -> None:
    """Values that an instruction waits for are defined before the instruction."""
    program = planned().program
    steps = list(program.body.steps)
    at, item = next((i, x) for i, x in enumerate(steps) if isinstance(x, Reshard))
    last = steps[-1].outs
    for field in ("after", "operands_after", "before", "barrier"):
        order = dataclasses.replace(item.scheduling, **{field: last})
        steps[at] = dataclasses.replace(item, scheduling=order)
        body = dataclasses.replace(program.body, steps=steps)
        with pytest.raises(InvalidLocalProgram, match=r"the order of .* too early"):
            verify_local(dataclasses.replace(program, body=body))
    order = dataclasses.replace(item.scheduling, row_major=last)
    steps[at] = dataclasses.replace(item, scheduling=order)
    body = dataclasses.replace(program.body, steps=steps)
    with pytest.raises(InvalidLocalProgram, match="lays out a value"):
        verify_local(dataclasses.replace(program, body=body))


def test_passes_are_in_the_pipeline() -> None:
    names = list(PIPELINE)
    at = names.index("local")
    assert names[at + 1 :] == [*SCHEDULING, "emit"]


@pytest.mark.parametrize("width", [128, 4])
def test_looked_up_and_scattered_rows_lie_by_rows(width: int) -> None:
    """Rows between dims of one element too, and narrow ones by columns; the layouts change no
    result on 8 devices.
    """

    def step(table: Any, rows: Any, scale: Any) -> tuple[Any, Any]:
        def loss(table: Any) -> Any:
            taken = table[rows[:, None] if width == 128 else rows]  # f32[64, 1, 128], f32[1024, 4]
            return ((taken.sum(-2) * scale) ** 2).sum()

        value, gradient = jax.value_and_grad(loss)(table)
        return table - gradient, value

    rng = np.random.default_rng(0)
    table = rng.normal(size=(256, width)).astype(np.float32)
    count = 64 if width == 128 else 1024
    args = table, rng.integers(0, 256, count).astype(np.int32), np.float32(0.5)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    tactics = [ps.ManualPartition({name: 0}, axis="data") for name in ("rows", "table")]
    plan = ps.auto_partition(mesh, schedule=tactics)(step).plan(*args)
    program = schedule_for(localize(plan.program.partition), TPU)
    pinned = [x for item in program.body.steps for x in item.scheduling.row_major]
    columns = [x for item in program.body.steps for x in item.scheduling.by_columns]
    assert [x.shape for x in pinned] == ([(8, 1, 128), (8, 1, 128)] if width == 128 else [])
    assert [x.shape for x in columns] == ([] if width == 128 else [(128, 4)])
    found = jax.jit(sharded(program, mesh))(*args)
    for a, b in zip(found, step(*args), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
