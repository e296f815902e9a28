"""Data, tactics and comparisons of the tests of front ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import partir_search as ps

ROWS = ps.ManualPartition({"x": 0}, axis="batch")
COLUMNS = ps.ManualPartition({"**/hidden/kernel": 1}, axis="model")
OPTIMIZER = optax.adam(1e-1, eps=1e-1)  # no noise of gradients that are zero


def data(rows: int = 16) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.normal(size=(rows, 8)), jnp.float32) for _ in range(2))


def partition(mesh: Any, *more: Any, **kw: Any) -> Callable[[Any], Any]:
    return ps.auto_partition(mesh, schedule=[ROWS, *more], machine="cpu", **kw)


def same(got: Any, want: Any) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=2e-5)
        assert a.dtype == b.dtype


def planned_once(step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on nothing may be planned."""
    from partir_search.planning.pipeline import PlanPipeline

    def fail(*args: Any) -> Any:
        raise AssertionError("planned again")

    monkeypatch.setattr(PlanPipeline, "make", fail)
