"""Kernels cut by a collective between a product and what follows it, by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from partir_search.ir.mesh import MeshShape
from partir_search.lowering.localize import localize
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.target.machine import Machine
from tests.support import ROUND, cost_of, module_of, ones, state_of, tile_arg

N = 4
ROWS, INNER, COLUMNS = 64, 128, 32
X, W, OUT = 4 * ROWS * INNER / N, 4 * INNER * COLUMNS / N, 4 * ROWS * COLUMNS
FREE = dataclasses.replace(ROUND, flops_per_s={"default": 1e30})  # products cost what they move


def state(fn: Any, dtype: Any = jnp.float32) -> Any:
    """A product over a tiled dim, and what is made of it."""
    x = jax.ShapeDtypeStruct((ROWS, INNER), dtype)
    w = jax.ShapeDtypeStruct((INNER, COLUMNS), dtype)
    found = state_of(module_of(fn, x, w), MeshShape(("a",), (N,)))
    tile_arg(found, 0, 1, "a")
    return found


def moved(found: Any, machine: Machine = FREE) -> float:
    """Bytes, at 1 GB/s."""
    return cost_of(found, machine).compute_seconds * 1e9


def test_partial_sums_are_stored_and_read_again() -> None:
    found = state(lambda x, w: jnp.tanh(x @ w))
    assert cost_of(found).bytes_by_kind.keys() == {"all_reduce"}
    assert moved(found) == pytest.approx(X + W + 3 * OUT)
    whole = state_of(module_of(lambda x, w: jnp.tanh(x @ w), ones(ROWS, INNER), ones(INNER, 32)))
    assert moved(whole) == pytest.approx(N * X + N * W + OUT)


def test_what_is_stored_anyway_is_stored_once() -> None:
    def fn(x: Any, w: Any) -> Any:
        product = x @ w
        return product, jnp.tanh(product)

    assert moved(state(fn)) == pytest.approx(X + W + 3 * OUT)


def test_scattered_sums_are_stored_whole_first() -> None:
    found = state(jnp.matmul)
    product = found.graph.module.body.ops[0].results[0]
    found.tile(found.graph.class_of[product.id], 0, (0,))
    assert cost_of(found).bytes_by_kind.keys() == {"reduce_scatter"}
    assert moved(found) == pytest.approx(X + W + OUT)


def test_what_follows_does_not_run_beside_the_product() -> None:
    slow = dataclasses.replace(ROUND, flops_per_s={"default": 1e7}, kernel_seconds=1e-6)
    cost = cost_of(state(lambda x, w: jnp.tanh(x @ w)), slow)
    assert cost.flops / 1e7 > 10 * (X + W + OUT) / 1e9
    assert cost.compute_seconds == pytest.approx(cost.flops / 1e7 + 2 * OUT / 1e9 + 2e-6)


def test_both_halves_pass_vector_units() -> None:
    """Each stores narrow numbers, and so takes as long as if it moved a wide one for each."""
    vectors = dataclasses.replace(FREE, vector_bytes=4)
    found = state(lambda x, w: jnp.tanh(x @ w), jnp.bfloat16)
    beside = 2 * 4 * ROWS * COLUMNS
    assert moved(found, vectors) == pytest.approx(moved(found) + beside)


def test_the_breakdown_has_them() -> None:
    found = state(lambda x, w: jnp.tanh(x @ w))
    model = CostModel(found.graph.module, found.graph.rules, FREE)
    program = localize(found.partition())
    kernels = [row for row in model.breakdown(program) if row.kind != "all_reduce"]
    assert sum(row.seconds for row in kernels) * 1e9 == pytest.approx(moved(found))
