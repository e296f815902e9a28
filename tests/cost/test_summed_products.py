"""Sums of products in the kernels of the products, and operands that several products share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.cost.test_stored_operands import SIZE, X, f32, peak

SQUARE = f32(128, 128)
FOUR = f32(4, 128, 128)


def test_products_are_added_one_by_one() -> None:
    """Of four products f32[64, 128] two are live at once; a product with two readers is kept."""

    def skips(x: Any, w: Any) -> Any:
        total = 0.0
        for n in range(4):
            total = total + x @ w[n]
        return jnp.tanh(total) @ w[0]

    def kept(x: Any, w: Any) -> Any:
        y = x @ w[0]
        return jnp.tanh(((y + x @ w[1]) + x @ w[2]) + x @ w[3]) @ w[0] + y.sum()

    assert peak(skips, X, FOUR) == 5 * SIZE
    assert peak(skips, X, FOUR, adds_products_in_place=True) == 2 * SIZE
    assert peak(kept, X, FOUR, adds_products_in_place=True) == 5 * SIZE


def test_other_sums_are_computed_by_their_readers() -> None:
    """Sums of arguments, and of a function of a product."""

    def fn(x: Any, w: Any) -> Any:
        return jnp.tanh((x + x * x) + jnp.tanh(x @ w)) @ w

    assert peak(fn, X, SQUARE, adds_products_in_place=True) == peak(fn, X, SQUARE)


@pytest.mark.parametrize(("products", "stored"), [(2, 0), (3, 0), (4, 1)])
def test_gates_that_several_products_read(products: int, stored: int) -> None:
    """A gate of both halves of f32[64, 256]: four reads of the halves are 8 times the gate's bytes,
    a gate stored and read four times 7; of three products, both are 6. The peak without the
    gate has the last result f32[64, 8] besides.
    """

    def fn(x: Any, u: Any, w: Any, v: Any) -> Any:
        y = x @ u
        gate = jnp.tanh(y[:, :128]) * y[:, 128:]
        return [gate @ w for _ in range(products)], jnp.sin(y) @ v

    args = X, f32(128, 256), f32(128, 8), f32(256, 8)
    traits = {"reads_views_in_place": True}
    added = peak(fn, *args, stores_shared_operands=True, **traits) - peak(fn, *args, **traits)
    assert added == stored * (SIZE - 64 * 8 * 4)


def test_functions_of_one_product_are_not_shared() -> None:
    """Four products read a GELU, or a slice that takes no arithmetic, from the product before."""

    def fn(x: Any, u: Any, w: Any, v: Any) -> Any:
        y = x @ u
        narrow = y[:, :128]
        return [(jax.nn.gelu(narrow) @ w, narrow @ w) for _ in range(4)], jnp.sin(y) @ v

    args = X, f32(128, 256), f32(128, 8), f32(256, 8)
    traits = {"reads_views_in_place": True}
    assert peak(fn, *args, stores_shared_operands=True, **traits) == peak(fn, *args, **traits)
