"""Totals over microbatches that are added after the loop: one total of all uses of a matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partir_search as ps
from partir_search.ir.core import Module
from partir_search.ir.verify import verify
from partir_search.planning.microbatch import in_time
from partir_search.planning.stage import print_module
from tests.support import assert_same, module_of

TABLE = np.linspace(-1.0, 1.0, 96, dtype=np.float32).reshape(12, 8)
TOKENS = np.arange(40, dtype=np.int32).reshape(8, 5) % 12
FEATURES = np.linspace(-1.0, 1.0, 64, dtype=np.float32).reshape(8, 8)


def tied(table: Any, tokens: Any) -> Any:
    """A matrix as embedding and head."""

    def loss(table: Any) -> Any:
        scores = jax.nn.log_softmax(table[tokens[:, :-1]].mean(1) @ table.T)
        return -jnp.take_along_axis(scores, tokens[:, -1:], axis=1).mean()

    value, grad = jax.value_and_grad(loss)(table)
    return table - 0.1 * grad, value


def narrow(table: Any, tokens: Any) -> Any:
    """Read in bf16, of a cast for each use."""

    def loss(table: Any) -> Any:
        h = table.astype(jnp.bfloat16)[tokens[:, :-1]].mean(1)
        scores = jax.nn.log_softmax((h @ table.astype(jnp.bfloat16).T).astype(jnp.float32))
        return -jnp.take_along_axis(scores, tokens[:, -1:], axis=1).mean()

    value, grad = jax.value_and_grad(loss)(table)
    return table - 0.1 * grad, value


def three_times(table: Any, tokens: Any) -> Any:
    """Two embeddings and a head with a factor, as in an encoder and a decoder."""

    def loss(table: Any) -> Any:
        h = jnp.tanh(table[tokens[:, :2]].mean(1)) + table[tokens[:, 2:]].mean(1)
        return (h @ table.T * 0.5).max(1).mean() + (h**2).mean()

    value, grad = jax.value_and_grad(loss)(table)
    return table - 0.1 * grad, value


def reshaped(table: Any, x: Any) -> Any:
    """A matrix and its elements in another shape."""

    def loss(table: Any) -> Any:
        return (jnp.sin(x @ table.T) ** 2).mean() + (x @ table.reshape(8, 12)).mean()

    value, grad = jax.value_and_grad(loss)(table)
    return table - 0.1 * grad, value


def returned(table: Any, tokens: Any) -> Any:
    """The gradient of one use is a result: two totals."""

    def loss(first: Any, second: Any) -> Any:
        return ((first[tokens[:, :-1]].mean(1) @ second.T) ** 2).mean()

    value, (first, second) = jax.value_and_grad(loss, (0, 1))(table, table)
    return table - 0.1 * (first + second), first, value


STEPS: dict[str, tuple[Callable[..., Any], Any, int]] = {
    "tied": (tied, TOKENS, 1),
    "narrow": (narrow, TOKENS, 1),
    "three times": (three_times, TOKENS, 1),
    "reshaped": (reshaped, FEATURES, 1),
    "returned": (returned, TOKENS, 2),
}


def totals_of(module: Module) -> int:
    """Carries of the loop over microbatches with dims."""
    (loop,) = (op for op in module.body.ops if op.params.get("accumulates"))
    return sum(bool(x.type.shape) for x in loop.results[: loop.params["num_carry"]])


@pytest.mark.parametrize("name", STEPS)
def test_one_total_of_all_uses(name: str) -> None:
    step, data, count = STEPS[name]
    module = in_time(module_of(step, TABLE, data), 4).module
    verify(module)
    assert totals_of(module) == count
    want = jax.tree.leaves(jax.jit(step)(TABLE, data))
    got = jax.tree.leaves(jax.jit(ps.microbatched(step, 4))(TABLE, data))
    assert_same(got, want, tolerance=1e-2 if name == "narrow" else 1e-6)


def test_print(golden: Callable[[str], None]) -> None:
    golden(print_module(in_time(module_of(tied, TABLE, TOKENS), 4).module))


@pytest.mark.devices
@pytest.mark.parametrize("name", STEPS)
def test_a_table_is_reduced_once(name: str, mesh: jax.sharding.Mesh) -> None:
    """Partial sums of devices stay in the total, and are finished after the loop."""
    step, data, count = STEPS[name]
    path = "x" if name == "reshaped" else "tokens"
    partitioned = ps.auto_partition(
        mesh,
        machine="tpu_v5e",
        microbatches=4,
        schedule=[ps.ManualPartition({path: 0}, axis="batch")],
    )(step)
    want = jax.tree.leaves(jax.jit(step)(TABLE, data))
    got = jax.tree.leaves(partitioned(TABLE, data))
    assert_same(got, want, tolerance=1e-2 if name == "narrow" else 1e-6)
    tables = [c for c in partitioned.plan(TABLE, data).collectives if c.bytes == TABLE.nbytes]
    assert [(c.kind, c.times) for c in tables] == [("all_reduce", 1)] * count


def two_lengths(w: Any, x: Any, y: Any) -> Any:
    """One matrix is read by arrays of which the model axis tiles one."""

    def loss(w: Any) -> Any:
        return (jnp.sin(x @ w) ** 2).mean() + ((y @ w) ** 2).mean()

    value, grad = jax.value_and_grad(loss)(w)
    return w - 0.1 * grad, value


@pytest.mark.devices
def test_finished_values_join_a_partial_sum(mesh: jax.sharding.Mesh) -> None:
    """They count on one device of the axis; no microbatch reduces."""
    x = np.linspace(-1, 1, 8 * 8 * 4, dtype=np.float32).reshape(8, 8, 4)
    args = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6), x, x[:, 0] + 0.5
    partitioned = ps.auto_partition(
        mesh,
        machine="tpu_v5e",
        microbatches=4,
        schedule=[
            ps.ManualPartition({"x": 0, "y": 0}, axis="batch"),
            ps.ManualPartition({"x": 1}, axis="model"),
        ],
    )(two_lengths)
    want = jax.tree.leaves(jax.jit(two_lengths)(*args))
    assert_same(jax.tree.leaves(partitioned(*args)), want, tolerance=1e-6)
    plan = partitioned.plan(*args)
    assert {(c.kind, c.times) for c in plan.collectives} == {("all_reduce", 1)}
    assert " = mask" in plan.local_ir()
