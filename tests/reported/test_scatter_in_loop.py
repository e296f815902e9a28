"""A scatter in a loop whose operand a collective reads afterwards."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import partir_search as ps

N = 64
WINDOW = lax.ScatterDimensionNumbers((0, 1), (), (0, 1))


def step(x: Any, start: Any) -> Any:
    """Diffusion inside a frame, whose left column is copied from the right after each step."""

    def body(u: Any, _: Any) -> tuple[Any, None]:
        inner = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
        u = lax.scatter_add(u, jnp.stack([start, start]), 0.1 * inner, WINDOW)
        return u.at[:, 0].set(u[:, -2]), None

    return lax.scan(body, x, None, length=4)[0]


@pytest.mark.devices
@pytest.mark.parametrize("spec", [P(None, "data"), P("data"), P("data", "model")])
def test_what_is_read_later_is_not_overwritten(spec: P) -> None:
    kinds = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=kinds)
    x = np.random.default_rng(0).normal(size=(N, N)).astype(np.float32)
    fixed = (jax.sharding.NamedSharding(mesh, spec), None)
    auto = ps.auto_partition(mesh, machine="cpu", schedule=[], in_shardings=fixed)(step)
    start = jnp.int32(1)
    np.testing.assert_allclose(auto(x, start), jax.jit(step)(x, start), rtol=1e-5, atol=1e-5)
