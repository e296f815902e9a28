"""Searches for a plan that fits: which programs are searched with segments computed again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.passes.remat import find_segments
from partir_search.plan.planned import Planned
from partir_search.planning.memory_fit import relieve
from partir_search.planning.planner import Planner
from partir_search.propagation.actions import Action
from partir_search.simulator.target.machine import find_machine
from tests.support import module_of


def deep(x: Any, *arrays: Any) -> Any:
    """Four new weights after one step of a deep network, and the sum of three tables."""
    weights, tables = arrays[:4], arrays[4:]

    def loss(weights: Any) -> Any:
        y = x
        for w in weights:
            y = y + jnp.tanh(jnp.sin(y @ w) @ w.T)
        return (y * y).mean()

    return [w - g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)] + [sum(tables)]


@pytest.mark.parametrize("rows", [8, 4096])
def test_searched_again_only_where_segments_free_memory(rows: int) -> None:
    """With 8 rows the peak is the sum of tables, which no segment holds; with 4096, activations."""
    weights = [jax.ShapeDtypeStruct((16, 32), jnp.float32)] * 4
    tables = [jax.ShapeDtypeStruct((1024, 256 if rows == 8 else 1), jnp.float32)] * 3
    module = module_of(deep, jax.ShapeDtypeStruct((rows, 16), jnp.float32), *weights, *tables)
    mesh, machine = MeshShape(("data",), (2,)), find_machine("cpu")
    planned = Planner(module, mesh, machine).replay([])
    searched: list[Module] = []

    def search(rewritten: Module, hints: Sequence[Action], goals: Any) -> Planned:
        searched.append(rewritten)
        return replay(rewritten, hints)

    def replay(rewritten: Module, actions: Sequence[Action]) -> Planned:
        return Planner(rewritten, mesh, machine).replay_compatible(actions)[0]

    assert find_segments(module)
    limit = 0.5 * planned.cost.peak_bytes
    found, segments = relieve(module, planned, limit, search, replay, lambda cost: cost.seconds)
    if rows == 8:
        assert not searched
        assert found is planned
        assert segments == ()
    else:
        assert len(searched) == 1
        assert found.cost.peak_bytes < planned.cost.peak_bytes
