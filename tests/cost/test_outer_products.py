"""Dots that sum nothing, which XLA:TPU computes in the kernels that read them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.support import ROUND, cost_of, module_of, state_of

X = jax.ShapeDtypeStruct((64, 128), jnp.float32)
OUTER = 64 * 128 * 128 * 4


def summed(x: Any, y: Any) -> Any:
    product = jnp.einsum("bi,bj->bij", x, y)
    return jnp.tanh(product).sum(axis=1), product.max(axis=2)


def multiplied(x: Any, y: Any) -> Any:
    product = jnp.einsum("bi,bj->bij", x, y)
    return jnp.einsum("bij,bj->bi", product, y), product.max(axis=2)


@pytest.mark.parametrize(("fn", "stored"), [(summed, 0), (multiplied, OUTER)])
def test_a_product_is_stored_for_dots_alone(fn: Any, stored: int) -> None:
    peaks = [
        cost_of(state_of(module_of(fn, X, X)), machine).peak_bytes
        for machine in (ROUND, ROUND.with_traits(multiplies_outer_products=True))
    ]
    assert peaks[0] > OUTER
    assert (peaks[1] > OUTER) == bool(stored)
