"""Recomputed layers in a Python loop, with rows of stacked parameters sliced inside of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partir_search as ps
from partir_search.ir.core import walk_regions
from partir_search.ir.mesh import MeshShape
from partir_search.ir.role import Role
from partir_search.ir.verify import verify
from partir_search.passes.roll import roll
from partir_search.passes.roll.recomputed_rows import with_rows_outside
from partir_search.passes.roll.static_rows import with_static_rows
from partir_search.rules.registry import role_of
from tests.support import device_mesh, floats_of, module_of, run_evaluator, state_of

LAYERS, WIDTH = 4, 6
ONE = MeshShape(("x",), (1,))
DOTS = jax.checkpoint_policies.dots_with_no_batch_dims_saveable


def block(h: Any, p: Any) -> Any:
    return h + jnp.tanh(h @ p["w"] + p["b"])


def rows(params: Any, i: Any) -> Any:
    return jax.tree.map(lambda x: x[i], params)


def closure(h: Any, params: Any, policy: Any) -> Any:
    """Each layer's function takes its row."""
    for i in range(LAYERS):
        layer = jax.checkpoint(lambda h, p, i=i: block(h, rows(p, i)), policy=policy)
        h = layer(h, params)
    return h


def given(h: Any, params: Any, policy: Any) -> Any:
    """The layer is called on its row."""
    layer = jax.checkpoint(block, policy=policy)
    for i in range(LAYERS):
        h = layer(h, rows(params, i))
    return h


def traced(h: Any, params: Any, policy: Any) -> Any:
    """The number of the layer is an argument of the layer."""
    layer = jax.jit(jax.checkpoint(lambda h, p, i: block(h, rows(p, i)), policy=policy))
    for i in range(LAYERS):
        h = layer(h, params, i)
    return h


def taken(h: Any, params: Any, policy: Any) -> Any:
    """Rows are looked up, in the order from the last to the first."""

    def layer(h: Any, p: Any, i: int) -> Any:
        return block(h, jax.tree.map(lambda x: jnp.take(x, LAYERS - 1 - i, axis=0), p))

    for i in range(LAYERS):
        h = jax.checkpoint(layer, policy=policy, static_argnums=2)(h, params, i)
    return h


def nested(h: Any, params: Any, policy: Any) -> Any:
    """A recomputed part of a recomputed layer takes a row of its own."""

    def layer(h: Any, p: Any, i: int) -> Any:
        part = jax.checkpoint(lambda h, w: h @ w[i], policy=policy)
        return h + jnp.tanh(part(h, p["w"]) + p["b"][i])

    for i in range(LAYERS):
        h = jax.checkpoint(layer, static_argnums=2)(h, params, i)
    return h


def step_of(layers: Callable[..., Any], policy: Any = None) -> Callable[..., Any]:
    def loss(params: Any, x: Any) -> Any:
        entry, *stacks = params
        return (layers(x @ entry, dict(zip("wb", stacks, strict=True)), policy) ** 2).mean()

    def run(params: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x)
        return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], value

    return run


def arguments() -> tuple[list[Any], Any]:
    *params, x = floats_of((3, WIDTH), (LAYERS, WIDTH, WIDTH), (LAYERS, WIDTH), (8, 3))
    return params, x


@pytest.mark.parametrize(
    ("layers", "policy"),
    [(closure, None), (given, None), (traced, DOTS), (taken, None), (nested, DOTS)],
)
def test_recomputed_layers_roll(layers: Callable[..., Any], policy: Any) -> None:
    """All layers, on rows of stacks in a scan; results are those of the step."""
    step, (params, x) = step_of(layers, policy), arguments()
    rolled = roll(module_of(lambda *xs: jax.tree.leaves(step(xs[:-1], xs[-1])), *params, x))
    assert rolled.layers == 2 * LAYERS
    verify(rolled.module)
    ops = [op for region in walk_regions(rolled.module.body) for op in region.ops]
    assert {role_of(op) for op in ops}.isdisjoint({Role.SLICE, Role.PADDING, Role.GATHER})
    results = run_evaluator(state_of(rolled.module, ONE).partition(), [*params, x])
    for result, expected in zip(results, jax.tree.leaves(step(params, x)), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.devices
@pytest.mark.parametrize(("layers", "policy"), [(traced, None), (given, DOTS)])
def test_pipeline_of_recomputed_layers(layers: Callable[..., Any], policy: Any) -> None:
    """A pipeline over four stages equals the plain step."""
    mesh = device_mesh(MeshShape(("stage", "data"), (4, 2)))
    step, schedule = step_of(layers, policy), [ps.Pipeline("stage", microbatches=4)]
    found = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule, progress=False)(step)
    assert found.plan(*arguments()).pipeline is not None
    made, plain = (jax.tree.leaves(fn(*arguments())) for fn in (found, step))
    for result, expected in zip(made, plain, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def whole(w: Any, x: Any) -> Any:
    """A region that reads the whole array besides rows."""
    return jax.grad(jax.checkpoint(lambda w: (jnp.tanh(x @ w[0]) * (x @ w.sum(0))).sum()))(w)


def test_the_array_is_an_operand_for_further_reads() -> None:
    module = module_of(whole, *floats_of((3, WIDTH, WIDTH), (8, WIDTH)))
    outside = with_rows_outside(module)
    verify(outside)
    args = floats_of((3, WIDTH, WIDTH), (8, WIDTH))
    (result,) = run_evaluator(state_of(outside, ONE).partition(), args)
    np.testing.assert_allclose(result, whole(*args), rtol=1e-5, atol=1e-6)


def clamped(w: Any) -> Any:
    """Rows beyond the array's ends: a slice takes the last row, a look-up has no number."""
    at = jax.jit(lambda w, i: jax.lax.dynamic_index_in_dim(w, i, keepdims=False))
    return jax.grad(lambda w: (at(w, 7) ** 2).sum())(w), jnp.take(w, 7, axis=0), w.at[1].set(0.0)


def test_rows_beyond_the_ends() -> None:
    w = floats_of((3, WIDTH))[0]
    module = with_static_rows(module_of(clamped, w))
    verify(module)
    for result, expected in zip(
        run_evaluator(state_of(module, ONE).partition(), [w]), clamped(w), strict=True
    ):
        np.testing.assert_array_equal(result, expected)
