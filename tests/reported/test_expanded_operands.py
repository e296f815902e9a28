"""Elementwise ops that expand dims of size 1, beside arrays that passes rewrite as views.

jax writes ``x[:, None] + y`` as one op on arrays of shapes (n, 1) and (1, m), without broadcasts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import partir_search as ps
from partir_search.ir.mesh import MeshShape
from partir_search.ir.verify import verify
from partir_search.passes.views import with_views
from tests.support import check_partition, floats_of, module_of, state_of, tile_arg

MESH = MeshShape(("data", "model"), (4, 2))


def positions(x: Any, y: Any) -> Any:
    """Positions behind an offset of zero per row, as a decoder has in its prefill."""
    at = jnp.zeros((x.shape[0],))[:, None] + jnp.arange(x.shape[1], dtype=x.dtype)
    return x[:4] * jnp.cos(at[4:] * y), at


def zeros_first(x: Any, y: Any) -> Any:
    zeros = jnp.zeros(x.shape)
    return zeros + x[:1], y[None] + zeros, zeros + y.sum(), zeros[:4] + 1.0


def ends(x: Any) -> Any:
    return jnp.pad(x, ((0, 0), (1, 1)), mode="wrap")


def padded_alike(x: Any, y: Any) -> Any:
    return ends(y[None]) * ends(x), ends(x) * ends(y[None])


def gradient_of_padded(x: Any, y: Any) -> Any:
    def loss(x: Any, y: Any) -> Any:
        flux = 0.5 * ends(x) ** 2 * ends(y[None])
        return ((flux[:, 2:] - flux[:, :-2]) ** 2).sum()

    return jax.grad(loss, (0, 1))(x, y)


def summed_in_a_loop(x: Any, y: Any) -> Any:
    """A total wider than each of its summands."""

    def body(total: Any, row: Any) -> Any:
        return total + (row * y)[None], None

    return lax.scan(body, jnp.zeros((8, 16)), x)[0]


FORMS = (positions, zeros_first, padded_alike, gradient_of_padded, summed_in_a_loop)


@pytest.mark.devices
@pytest.mark.parametrize("fn", FORMS, ids=[f.__name__ for f in FORMS])
def test_views_keep_expanded_shapes(fn: Callable[..., Any]) -> None:
    """Views keep types, and the tiled program equals the plain function."""
    args = floats_of((8, 16), (16,))
    module = with_views(module_of(fn, *args))
    verify(module)
    state = state_of(module, MESH, contract=True)
    tile_arg(state, 0, 0, "data")
    tile_arg(state, 0, 1, "model")
    check_partition(state.partition(), fn, args)


@pytest.mark.devices
@pytest.mark.parametrize("fn", FORMS, ids=[f.__name__ for f in FORMS])
def test_plans_keep_expanded_shapes(fn: Callable[..., Any]) -> None:
    args = floats_of((8, 16), (16,))
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    step = ps.auto_partition(mesh, machine="tpu_v5e", episodes=8, progress=False)(fn)
    for got, want in zip(jax.tree.leaves(step(*args)), jax.tree.leaves(fn(*args)), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
