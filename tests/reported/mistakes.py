"""The step, mesh and expectations of the tests of mistakes."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps

MESH = AbstractMesh((2, 4), ("batch", "model"))
STATE = {"params": {"w1": np.ones((8, 16), np.float32), "w2": np.ones((16, 8), np.float32)}}


def rows(n: int = 16) -> dict[str, Any]:
    return {"x": np.ones((n, 8), np.float32), "y": np.ones((n, 8), np.float32)}


def step(state: Any, batch: Any) -> Any:
    def loss(p: Any) -> Any:
        return jnp.mean((jnp.tanh(batch["x"] @ p["w1"]) @ p["w2"] - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(state["params"])
    return {**state, "params": jax.tree.map(lambda p, g: p - g, state["params"], grads)}, value


def no_search(record: Any) -> None:
    pytest.fail("a search ran before the error")


def decorated(mesh: Any = MESH, **kw: Any) -> Any:
    return ps.auto_partition(mesh, **{"machine": "cpu", "progress": no_search, **kw})(step)


def planned(state: Any = STATE, batch: Any = None, **kw: Any) -> ps.Plan:
    plan: ps.Plan = decorated(**kw).plan(state, batch or rows())
    return plan


def manual(dim: Any, axis: Any = "batch") -> list[Any]:
    return [ps.ManualPartition({"batch/x": dim}, axis=axis)]


def says(text: str) -> Any:
    """Expects one of the errors that are meant for users; none of what leaks from the inside."""
    return pytest.raises((TypeError, ValueError, OSError, RuntimeError), match=re.escape(text))


def example_args() -> Any:
    return STATE, rows()


def failing() -> Any:
    raise KeyError("boom")


def keyed(state: Any, batch: Any) -> Any:
    return state["no such key"] + batch["x"]
