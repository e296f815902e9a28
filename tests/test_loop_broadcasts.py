"""Broadcasts of values known before a scan are made inside of the scan."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partir_search as ps
from partir_search.ir.core import Module, walk_regions
from partir_search.ir.interpreter import evaluate
from partir_search.ir.role import Role
from partir_search.ir.verify import verify
from partir_search.passes.loop_broadcasts import with_broadcasts_inside
from partir_search.rules.registry import role_of
from tests.support import module_of, state_of

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
ROW = np.linspace(1, 2, 8, dtype=np.float32)


def over(make: Any, nested: bool = False) -> Any:
    """A function that scans over `x` with a value made before the scan."""

    def fn(x: Any, row: Any) -> Any:
        wide = make(x, row)

        def body(carry: Any, _: None) -> Any:
            return jnp.sin(carry * wide), None

        def outer(carry: Any, _: None) -> Any:
            return jax.lax.scan(body, carry, None, length=2)

        carry, _ = jax.lax.scan(outer if nested else body, x, None, length=3)
        return carry, x if make is not returned else wide

    return fn


def repeated(x: Any, row: Any) -> Any:
    return jnp.broadcast_to(row, x.shape)


def turned(x: Any, row: Any) -> Any:
    return jnp.broadcast_to(row[:, None], x.shape[::-1]).T


def constant(x: Any, row: Any) -> Any:
    return jnp.full(x.shape, 0.5, jnp.float32)


def computed(x: Any, row: Any) -> Any:
    return jnp.cos(jnp.broadcast_to(row, x.shape) + x)


def returned(x: Any, row: Any) -> Any:
    return jnp.broadcast_to(row, x.shape)


def broadcasts(module: Module, outside: bool) -> int:
    """Number of broadcasts to the size of `X` outside or inside of all scans."""
    ops = module.body.ops
    if not outside:
        ops = tuple(o for op in ops for r in op.regions for x in walk_regions(r) for o in x.ops)
    return sum(
        role_of(op) is Role.BROADCAST and op.results[0].type.nbytes == X.nbytes for op in ops
    )


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("make", "outside", "inside"),
    [(repeated, 0, 1), (turned, 0, 1), (constant, 0, 1), (computed, 1, 0), (returned, 1, 1)],
)
def test_moved(make: Any, outside: int, inside: int, nested: bool) -> None:
    """`computed` is an array of its own; a broadcast with a further reader stays, too."""
    module = module_of(over(make, nested), X, ROW)
    assert broadcasts(module, outside=False) == 0
    new = with_broadcasts_inside(module)
    verify(new)
    assert (broadcasts(new, outside=True), broadcasts(new, outside=False)) == (outside, inside)
    assert (new is module) == (make is computed)
    for got, wanted in zip(run(new), jax.jit(over(make, nested))(X, ROW), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def run(module: Module) -> list[Any]:
    return [np.asarray(y) for y in evaluate(state_of(module).partition(), (X, ROW))]


def test_carried_and_stacked_broadcasts_stay() -> None:
    def fn(row: Any) -> Any:
        carry, rows = jnp.broadcast_to(row, (4, 8)), jnp.broadcast_to(row, (3, 4, 8))
        return jax.lax.scan(lambda c, r: (jnp.sin(c * r), None), carry, rows)[0]

    module = module_of(fn, ROW)
    assert with_broadcasts_inside(module) is module


def test_masks_of_scanned_layers_with_gradients() -> None:
    """Under `jax.grad` the mask leaves the scan; the plan's program has none outside."""

    def loss(w: Any, x: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            scores = jnp.where(
                jnp.tril(jnp.ones((8, 8), bool)), jnp.einsum("bqd,bkd->bqk", x, x), 0
            )
            return jnp.einsum("bqk,bkd->bqd", scores, x @ w), None

        return jax.lax.scan(layer, x, w)[0].sum()

    mesh = jax.sharding.AbstractMesh((2,), ("data",))
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((3, 4, 4), (16, 8, 4))]
    decorate = ps.auto_partition(mesh, machine="tpu_v5e", episodes=10, progress=False)
    plan = decorate(jax.grad(loss)).plan(*shapes)
    masks = [v for op in plan.module.body.ops for v in op.results if v.type.shape[-2:] == (8, 8)]
    assert not [v for v in masks if len(v.type.shape) == 3]
