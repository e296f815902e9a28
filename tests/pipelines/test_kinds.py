"""Pipelines of many kinds of models, executed on 8 devices against the plain step."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.ir.pipeline_runs import runs
from partir_search.planning.microbatch import batch_size
from tests.pipelines.kinds import BATCH, LENGTH, STEPS, arguments
from tests.support import assert_same, module_of

# Each of the first has what no other test has; the others are further kinds.
SHORT = ("keys_of_pairs", "slopes", "u_shaped", "u_shaped_reversed", "unnamed")
NAMES = [n if n in SHORT else pytest.param(n, marks=pytest.mark.long) for n in STEPS]


def planned(name: str, shape: tuple[int, int], **numbers: Any) -> tuple[Any, ps.Plan]:
    mesh = jax.make_mesh(shape, ("stage", "data"), devices=jax.devices())
    step = ps.auto_partition(
        mesh,
        machine="tpu_v5e",
        schedule=[ps.Pipeline("stage", microbatches=4, **numbers)],
        episodes=20,
        progress=False,
    )(jax.jit(STEPS[name]))
    return step, step.plan(*arguments(name))


@pytest.mark.devices
@pytest.mark.parametrize("name", NAMES)
def test_a_pipeline_equals_the_plain_step(name: str) -> None:
    step, plan = planned(name, (4, 2))
    want = jax.tree.leaves(jax.jit(STEPS[name])(*arguments(name)))
    assert_same(jax.tree.leaves(step(*arguments(name))), want, tolerance=1e-5)
    assert plan.pipeline is not None


def test_loops_over_ticks_alone_are_marked() -> None:
    """Not the scan that makes a table once, for all microbatches."""
    mesh = AbstractMesh((4, 2), ("stage", "data"))
    schedule = [ps.Pipeline("stage", microbatches=4)]
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule, progress=False)
    plan = step(jax.jit(STEPS["slopes"])).plan(*arguments("slopes"))
    assert plan.pipeline is not None
    marked, others = list[int](), list[int]()
    for op in plan.module.body.ops:
        if op.prim == "scan":
            ticks = op.params.get("accumulates") == "ticks"
            (marked if ticks else others).append(op.params["length"])
    assert marked == [phase.ticks for phase in runs(plan.pipeline.timetable(4))]
    assert LENGTH in others


@pytest.mark.devices
@pytest.mark.long
@pytest.mark.parametrize("name", ["u_shaped", "u_shaped_turned", "keys_of_pairs", "experts"])
def test_two_stages(name: str) -> None:
    step, _ = planned(name, (2, 4), schedule="gpipe")
    want = jax.tree.leaves(jax.jit(STEPS[name])(*arguments(name)))
    assert_same(jax.tree.leaves(step(*arguments(name))), want, tolerance=1e-5)


def test_trained_arguments_are_no_batch() -> None:
    """In any order, updated or with a gradient returned."""
    step, args = STEPS["unnamed"], arguments("unnamed")
    assert batch_size(module_of(step, *args)) == BATCH
    assert batch_size(module_of(lambda t, *w: step(*w, t), args[-1], *args[:-1])) == BATCH

    def gradients(embedding: Any, w: Any, b: Any, tokens: Any) -> Any:
        def loss(*p: Any) -> Any:
            return step(*p, tokens)[1]

        return jax.value_and_grad(loss, (0, 1, 2))(embedding, w, b)

    assert batch_size(module_of(gradients, *args)) == BATCH
