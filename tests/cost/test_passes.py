"""Seconds of kernels that are not products: vector units, look-ups, memory on the chip."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from partir_search.lowering.localize import localize
from partir_search.simulator.simulator import CostModel
from tests.support import ROUND, module_of, state_of, tile_arg

FAST = dataclasses.replace(ROUND, flops_per_s={"default": 1e15})
VECTORS = dataclasses.replace(FAST, vector_bytes=4)
SHAPE = (64, 128)
POINTS = 64 * 128


def seconds(machine: Any, fn: Callable[..., Any], *args: Any, tile: int | None = None) -> float:
    state = state_of(module_of(fn, *args))
    if tile is not None:
        tile_arg(state, tile, 0, "batch")
    model = CostModel(state.graph.module, state.graph.rules, machine)
    return model.evaluate(localize(state.partition())).compute_seconds


def wide() -> Any:
    return np.ones(SHAPE, np.float32)


def narrow() -> Any:
    return jnp.ones(SHAPE, jnp.bfloat16)


@pytest.mark.parametrize(
    ("fn", "args", "moved", "passes"),
    [
        (jnp.tanh, (wide(),), 8, 0),
        (jnp.tanh, (narrow(),), 4, 1),
        (lambda x, y, z: x * y + z, (narrow(), narrow(), narrow()), 8, 1),  # however many operands
        (lambda x: jnp.tanh(x).sum(1), (wide(),), 4, 1),
    ],
    ids=["wide", "narrow", "of several", "reduced"],
)
def test_narrow_results_and_reductions_take_one_more_pass(
    fn: Callable[..., Any], args: tuple[Any, ...], moved: int, passes: int
) -> None:
    """Bytes for each point at 1 GB/s, and four more for what vector units do."""
    written = POINTS * 4e-9 * passes
    slack = 4 * SHAPE[0] * 1e-9  # what a reduction makes
    assert seconds(FAST, fn, *args) == pytest.approx(POINTS * moved * 1e-9, abs=slack)
    assert seconds(VECTORS, fn, *args) - seconds(FAST, fn, *args) == pytest.approx(written)


@pytest.mark.parametrize("rows", [1, 8])
def test_products_with_vectors_walk_all_their_points(rows: int) -> None:
    """A row by a matrix, one for each of 64: vector units multiply and reduce. Eight rows by a
    matrix are work for matrix units, whose wide result takes no pass.
    """
    x, w = np.ones((64, rows, 128), np.float32), np.ones((64, 128, 32), np.float32)
    fn = jnp.matmul if rows > 1 else lambda x, w: jnp.einsum("bk,bkn->bn", x[:, 0], w)
    more = seconds(VECTORS, fn, x, w) - seconds(FAST, fn, x, w)
    assert more == pytest.approx(64 * 128 * 32 * 4e-9 if rows == 1 else 0.0, abs=1e-8)
    rowwise = [seconds(m, lambda x: jnp.einsum("bk,bk->b", x, x), wide()) for m in (VECTORS, FAST)]
    assert rowwise[0] - rowwise[1] == pytest.approx(POINTS * 4e-9)


def test_a_tile_takes_its_share() -> None:
    whole = seconds(VECTORS, jnp.tanh, narrow())
    assert seconds(VECTORS, jnp.tanh, narrow(), tile=0) == pytest.approx(whole / 2)


def test_products_of_many_matrices_hide_no_bytes() -> None:
    """One product takes as long as its flops or its bytes take, a batch of them as long as both;
    what vector units do runs beside either.
    """
    even = dataclasses.replace(VECTORS, flops_per_s={"default": 1e10})

    def flat(x: Any, y: Any) -> Any:
        return x @ y.T

    def batched(x: Any, y: Any) -> Any:
        return jnp.einsum("bqd,bkd->bqk", x, y)

    x, xs = jnp.ones((64, 32), jnp.bfloat16), jnp.ones((4, 64, 32), jnp.bfloat16)
    flops, nbytes = 2 * 64 * 64 * 32, 2 * (2 * 64 * 32) + (2 + 4) * 64 * 64
    assert seconds(even, flat, x, x) == pytest.approx(max(flops / 1e10, nbytes / 1e9))
    both = max(flops / 1e10, 4e-9 * 64 * 64) + (nbytes - 4 * 64 * 64) / 1e9
    assert seconds(even, batched, xs, xs) == pytest.approx(4 * both)


def test_what_needs_a_finished_reduction_is_another_kernel() -> None:
    """The sum of exponentials needs all of the maximum: the scores are read twice."""

    def f(x: Any) -> Any:
        return jnp.exp(x - x.max(1, keepdims=True)).sum(1)

    assert seconds(FAST, f, wide()) == pytest.approx(POINTS * 8e-9, rel=0.05)


def test_two_sums_over_one_tensor_are_one_kernel() -> None:
    assert seconds(FAST, lambda x: (x.sum(1), (x * x).sum(1)), wide()) == pytest.approx(
        POINTS * 4e-9, rel=0.05
    )


def test_single_numbers_do_not_part_a_kernel() -> None:
    """Adam's update joins the moments, though its step size is worked out after them."""

    def f(p: Any, m: Any, g: Any, count: Any) -> Any:
        m = 0.9 * m + g
        scale = 1.0 / (1.0 - 0.9**count)
        return p - scale * m, m

    args = wide(), wide(), wide(), np.float32(3)
    assert seconds(FAST, f, *args) == pytest.approx(POINTS * (3 + 2) * 4e-9, rel=0.01)


def test_a_table_is_read_where_it_is_looked_up() -> None:
    """Eight rows of 4,096 are read and written."""
    table, ids = np.ones((4096, 128), np.float32), np.zeros(8, np.int32)
    taken = seconds(FAST, lambda t, i: t.at[i].get(mode="clip"), table, ids)
    assert taken == pytest.approx(2 * 8 * 128 * 4e-9, rel=0.05)


def test_what_fits_on_the_chip_is_faster_there() -> None:
    """A value of half of it at most is there before it is read."""
    nbytes = 4 * POINTS
    for vmem, factor in ((2 * nbytes, 0.5), (2 * nbytes - 1, 1.0)):
        machine = dataclasses.replace(FAST, vmem_bytes=vmem, vmem_bytes_per_s=2e9)
        assert seconds(machine, jnp.tanh, wide()) == pytest.approx(2 * nbytes * 1e-9 * factor)


def test_sums_over_outer_dims_that_make_much_are_kernels_of_their_own() -> None:
    """A bias' gradient over the batch: what is summed is read once more for it."""

    def f(x: Any) -> Any:
        return jnp.tanh(x), x.sum(0)

    few, many = (np.ones((4, 2**19 + more), np.float32) for more in (0, 2**19 + 128))
    assert seconds(FAST, f, few) == pytest.approx((2 + 0.25) * 4e-9 * few.size, rel=0.01)
    assert seconds(FAST, f, many) == pytest.approx((3 + 0.25) * 4e-9 * many.size, rel=0.01)


def test_sums_of_each_example_are_not() -> None:
    """However many examples there are, one example's sums are all that is added to at a time."""

    def f(x: Any) -> Any:
        return jnp.tanh(x), x.sum(1)

    x = np.ones((2**13, 4, 129), np.float32)  # of all examples they are as large
    assert seconds(FAST, f, x) == pytest.approx((2 + 0.25) * 4e-9 * x.size, rel=0.01)
