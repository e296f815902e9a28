"""Branches that return their arguments, beside branches of many ops."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import partir_search as ps
from partir_search.passes.fold import linear


def step(ws: list[Any], x: Any, busy: Any) -> Any:
    """Layers that may be skipped, as in a line search that has ended."""

    def layers(h: Any) -> Any:
        for w in ws:
            h = jnp.tanh(h @ w) + h
        return h

    return jax.lax.cond(busy, layers, lambda h: h, x)


def test_a_branch_without_ops_beside_a_folded_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The larger branch is folded layer by layer; the other has no row in the curve of memory."""
    monkeypatch.setattr(linear, "MIN_OPENED", 8)
    mesh = jax.make_mesh((4, 2), ("data", "model"), (AxisType.Auto,) * 2)
    keys = jax.random.split(jax.random.key(0), 7)
    ws, x = (
        [jax.random.normal(k, (16, 16)) / 4 for k in keys[:6]],
        jax.random.normal(keys[6], (8, 16)),
    )
    partitioned = ps.auto_partition(mesh, machine="tpu_v5e", episodes=10, progress=False)(step)
    for busy in (True, False):
        found = partitioned(ws, x, jnp.array(busy))
        np.testing.assert_allclose(found, step(ws, x, jnp.array(busy)), rtol=1e-4, atol=1e-5)
    assert partitioned.plan(ws, x, jnp.array(True)).cost.seconds > 0
