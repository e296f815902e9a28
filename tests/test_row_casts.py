"""Layers in a Python loop that cast the whole stack of parameters, and slice their own row."""

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
from partir_search.passes.roll.row_casts import with_rows_cast
from partir_search.rules.registry import role_of
from tests.support import device_mesh, floats_of, module_of, run_evaluator, state_of

LAYERS, WIDTH, BATCH = 4, 6, 8
ONE = MeshShape(("x",), (1,))
BFLOAT16_EPS = 2.0**-8


def narrow(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)


def row(tree: Any, i: int) -> Any:
    return jax.tree.map(lambda x: x[i], tree)


def block(h: Any, p: Any) -> Any:
    return h + jnp.tanh(h @ p["w"] + p["b"])


def each(h: Any, stacks: Any) -> Any:
    """Every layer casts the stacks."""
    for i in range(LAYERS):
        h = block(h, row(narrow(stacks), i))
    return h


def twice(h: Any, stacks: Any) -> Any:
    """Every layer casts the stacks and reads its row of the matrices twice."""
    for i in range(LAYERS):
        p = narrow(stacks)
        h = h + jnp.tanh(h @ p["w"][i] + p["b"][i]) @ p["w"][i].T
    return h


def recomputed(h: Any, stacks: Any) -> Any:
    """Every recomputed layer casts the stacks."""
    layer = jax.checkpoint(lambda h, p, i: block(h, row(narrow(p), i)), static_argnums=2)
    for i in range(LAYERS):
        h = layer(h, stacks, i)
    return h


def indexed(h: Any, stacks: Any) -> Any:
    """A jitted layer has its number as an argument."""
    layer = jax.jit(lambda h, p, i: block(h, row(narrow(p), i)))
    for i in range(LAYERS):
        h = layer(h, stacks, i)
    return h


def once(h: Any, stacks: Any) -> Any:
    """The stacks are cast in front of the layers."""
    p = narrow(stacks)
    for i in range(LAYERS):
        h = block(h, row(p, i))
    return h


def step_of(layers: Callable[..., Any]) -> Callable[..., Any]:
    """Gradients of a network."""

    def loss(params: Any, x: Any) -> Any:
        entry, w, b = params
        return (layers(x @ entry, {"w": w, "b": b}) ** 2).mean()

    return jax.value_and_grad(loss)


def arguments() -> tuple[list[Any], Any]:
    *params, x = floats_of((3, WIDTH), (LAYERS, WIDTH, WIDTH), (LAYERS, WIDTH), (BATCH, 3))
    return params, x


def module_with(layers: Callable[..., Any]) -> Any:
    params, x = arguments()
    return module_of(lambda *xs: jax.tree.leaves(step_of(layers)(xs[:-1], xs[-1])), *params, x)


@pytest.mark.parametrize("layers", [each, twice, recomputed, indexed, once])
def test_layers_roll(layers: Callable[..., Any]) -> None:
    """All layers, on rows of stacks in a scan; results are those of the step."""
    rolled = roll(module_with(layers))
    assert rolled.layers == 2 * LAYERS
    verify(rolled.module)
    ops = [op for region in walk_regions(rolled.module.body) for op in region.ops]
    assert {role_of(op) for op in ops}.isdisjoint({Role.SLICE, Role.PADDING})
    params, x = arguments()
    results = run_evaluator(state_of(rolled.module, ONE).partition(), [*params, x])
    expected = jax.tree.leaves(step_of(layers)(params, x))
    for got, want in zip(results, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=BFLOAT16_EPS, atol=1e-6)


def test_casts_in_front_of_the_layers_stay() -> None:
    """A stack cast once is no cast of rows, made again for every microbatch."""
    module = module_with(once)
    assert with_rows_cast(module) is module


def total(w: Any, x: Any) -> Any:
    """A cast with a further reader than the slice of a row."""
    p = w.astype(jnp.bfloat16)
    return x @ p[1] + p.sum(0), (x @ p[2:3, 0].T).sum()


def test_casts_of_further_readers_stay() -> None:
    module = module_of(total, *floats_of((3, WIDTH, WIDTH), (WIDTH, WIDTH)))
    assert with_rows_cast(module) is module


@pytest.mark.devices
@pytest.mark.parametrize("layers", [each, recomputed])
@pytest.mark.parametrize("pipeline", [True, False])
def test_microbatches(layers: Callable[..., Any], pipeline: bool) -> None:
    """As a pipeline over four stages and as a loop, up to one rounding of gradients to bf16."""
    mesh = device_mesh(MeshShape(("stage", "data"), (4, 2)))
    options: dict[str, Any] = {"schedule": [ps.Pipeline("stage", microbatches=4)]}
    options = options if pipeline else {"microbatches": 4}
    step = step_of(layers)
    found = ps.auto_partition(mesh, machine="tpu_v5e", progress=False, **options)(step)
    assert (found.plan(*arguments()).pipeline is not None) is pipeline
    made, plain = (jax.tree.leaves(fn(*arguments())) for fn in (found, step))
    for got, want in zip(made, plain, strict=True):
        np.testing.assert_allclose(got, want, rtol=BFLOAT16_EPS, atol=1e-6)
