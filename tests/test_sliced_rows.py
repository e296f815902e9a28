"""Layers in a Python loop, with rows sliced out of stacked parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partir_search as ps
from partir_search.ir.mesh import MeshShape
from partir_search.ir.role import Role
from partir_search.ir.verify import verify
from partir_search.passes.roll import roll
from partir_search.passes.roll.sliced_rows import with_rows_apart
from partir_search.rules.registry import role_of
from tests.support import device_mesh, floats_of, module_of, run_evaluator, state_of

LAYERS, WIDTH = 4, 6
ONE = MeshShape(("x",), (1,))


def step(dim: int) -> Any:
    """Gradients of a network whose weights and biases lie along `dim`, and in columns."""

    def loss(params: Any, x: Any) -> Any:
        entry, weights, biases = params
        h = x @ entry
        for i in range(LAYERS):
            h = h + jnp.tanh(h @ weights[(slice(None),) * dim + (i,)] + biases[:, i])
        return (h**2).mean()

    def run(params: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x)
        return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], value

    return run


def arguments(dim: int) -> tuple[list[Any], Any]:
    shape = [WIDTH, WIDTH]
    shape.insert(dim, LAYERS)
    *params, x = floats_of((3, WIDTH), tuple(shape), (WIDTH, LAYERS), (8, 3))
    return params, x


@pytest.mark.parametrize("dim", range(3))
def test_rows_are_rows_of_a_scan(dim: int) -> None:
    """All layers roll, the array is the scan's stack, and results are those of the step."""
    params, x = arguments(dim)
    rolled = roll(module_of(lambda *xs: jax.tree.leaves(step(dim)(xs[:-1], xs[-1])), *params, x))
    assert rolled.layers == 2 * LAYERS
    verify(rolled.module)
    roles = {role_of(op) for op in rolled.module.ops}
    assert roles.isdisjoint({Role.LAYERS, Role.ROWS_OF_LAYERS, Role.SLICE, Role.PADDING})
    results = run_evaluator(state_of(rolled.module, ONE).partition(), [*params, x])
    for result, expected in zip(results, jax.tree.leaves(step(dim)(params, x)), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.devices
def test_pipeline_of_rows() -> None:
    """A pipeline over two stages equals the plain step."""
    mesh = device_mesh(MeshShape(("stage", "data"), (2, 2)))
    schedule = [ps.Pipeline("stage", microbatches=4)]
    found = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule, progress=False)(step(2))
    assert found.plan(*arguments(2)).pipeline is not None
    made, plain = (jax.tree.leaves(fn(*arguments(2))) for fn in (found, step(2)))
    for result, expected in zip(made, plain, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def read_twice(params: Any, x: Any) -> Any:
    """Gradients of layers that slice their matrix twice, and their bias three times."""

    def loss(params: Any) -> Any:
        entry, weights, biases = params
        h = x @ entry
        for i in range(LAYERS):
            hidden = jnp.tanh(h @ weights[i] + biases[:, i]) + biases[:, i] * h
            h = h + (hidden @ weights[i].T) * biases[:, i]
        return (h**2).mean()

    return jax.tree.leaves(jax.value_and_grad(loss)(params))


def test_rows_sliced_several_times() -> None:
    params, x = arguments(0)
    rolled = roll(module_of(lambda *xs: read_twice(xs[:-1], xs[-1]), *params, x))
    assert rolled.layers == 2 * LAYERS
    verify(rolled.module)
    roles = {role_of(op) for op in rolled.module.ops}
    assert roles.isdisjoint({Role.LAYERS, Role.ROWS_OF_LAYERS, Role.SLICE, Role.PADDING})
    results = run_evaluator(state_of(rolled.module, ONE).partition(), [*params, x])
    for result, expected in zip(results, read_twice(params, x), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.devices
def test_pipeline_of_rows_sliced_several_times() -> None:
    mesh = device_mesh(MeshShape(("stage", "data"), (2, 2)))
    schedule = [ps.Pipeline("stage", microbatches=4)]
    found = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule, progress=False)
    step, args = found(read_twice), arguments(0)
    assert step.plan(*args).pipeline is not None
    for result, expected in zip(step(*args), read_twice(*args), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def halves(w: Any, x: Any) -> Any:
    return jax.grad(lambda w: (jnp.tanh(x @ w[0]) @ w[1]).sum())(w)


def some(w: Any, x: Any) -> Any:
    """The last row is not read."""
    return jax.grad(lambda w: sum((x @ w[i]).sum() for i in range(3)))(w)


@pytest.mark.parametrize("fn, rows", [(halves, 2), (some, 4)])
def test_further_slices_stay(fn: Any, rows: int) -> None:
    module = module_of(fn, *floats_of((rows, WIDTH, WIDTH), (8, WIDTH)))
    assert with_rows_apart(module) is module
