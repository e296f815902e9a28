"""ZeRO 1 beside microbatches: gradients are reduced once, casts of parameters gathered once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import partir_search as ps
from partir_search.lowering.verify_local import verify_local
from tests.pipelines.programs import LAYERS, WIDTH, arguments, narrow
from tests.support import assert_same


def step(state: Any, tokens: Any, key: Any) -> Any:
    """A step with momentum."""
    params, momentum = state
    loss, grads = jax.value_and_grad(narrow)(params, tokens, key)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum)
    return (params, momentum), loss


@pytest.mark.devices
def test_sums_are_reduced_once() -> None:
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])
    params, tokens, key = arguments()
    args = (params, jax.tree.map(jnp.zeros_like, params)), tokens, key
    options: dict[str, Any] = {"machine": "tpu_v5e", "microbatches": 4, "progress": False}
    plans = ps.auto_partition(mesh, **options)(jax.jit(step)).known_plans(*args)
    one, two = plans["BP(data)+Z1"], plans["BP(data)+Z2"]
    placed = {path: spec for path, _, spec in one.arguments()}
    assert placed["state/0/layers/w"] == jax.P()
    assert "data" in placed["state/1/layers/w"]
    reduces = ("all_reduce", "reduce_scatter")
    assert {c.times for c in one.collectives if c.kind in reduces} == {1}
    gradients = [c for c in one.collectives if c.kind in reduces and c.bytes > 4]
    assert [c.kind for c in gradients] == ["reduce_scatter"] * 3  # their readers are tiled
    assert {c.times for c in two.collectives if c.kind in reduces} > {1}
    verify_local(one.program)
    run = ps.auto_partition(mesh, machine="tpu_v5e", schedule=one)(jax.jit(step))
    want = jax.tree.leaves(jax.jit(step)(*args))
    assert_same(jax.tree.leaves(run(*args)), want, tolerance=1e-2)


@pytest.mark.devices
def test_casts_of_parameters_are_gathered_once() -> None:
    """In bf16, before the ticks of a pipeline."""
    mesh = jax.make_mesh((2, 2), ("stage", "data"), devices=jax.devices()[:4])
    params, tokens, key = arguments()
    args = (params, jax.tree.map(jnp.zeros_like, params)), tokens, key
    schedule = [ps.Pipeline("stage", microbatches=4), ps.AutomaticPartition()]
    options: dict[str, Any] = {"machine": "tpu_v5e", "progress": False}
    plans = ps.auto_partition(mesh, schedule=schedule, **options)(jax.jit(step)).known_plans(*args)
    plan = plans["PP(stage)+BP(data)+Z1P"]
    placed = {path: spec for path, _, spec in plan.arguments()}
    assert all("data" in placed[f"state/{i}/layers/w"] for i in (0, 1))
    gathers = [c for c in plan.collectives if c.kind == "all_gather" and "data" in c.axes]
    layers = [c.bytes for c in gathers if c.times == 1]
    assert LAYERS // 2 * WIDTH * WIDTH * 2 in layers
    reduces = [c for c in plan.collectives if c.axes == ("data",) and "reduce" in c.kind]
    assert [(c.kind, c.times) for c in reduces if c.bytes > 4] == [("reduce_scatter", 1)] * 3
    verify_local(plan.program)
    run = ps.auto_partition(mesh, schedule=plan, **options)(jax.jit(step))
    want = jax.tree.leaves(jax.jit(step)(*args))
    assert_same(jax.tree.leaves(run(*args)), want, tolerance=1e-2)
