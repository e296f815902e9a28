"""Searches for a plan that fits: which programs are searched with segments computed again."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import partir_search as ps
from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.mcts.goals import is_monotone, scorer
from partir_search.passes.remat import find_segments
from partir_search.plan.planned import Planned
from partir_search.planning.memory_fit import PROBES, _fewest, _worth, fit_by_remat
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
    found, segments = fit_by_remat(
        module, planned, limit, search, replay, lambda cost: cost.seconds
    )
    if rows == 8:
        assert not searched
        assert found is planned
        assert segments == ()
    else:
        assert len(searched) == 1
        assert found.cost.peak_bytes < planned.cost.peak_bytes


@pytest.mark.parametrize(
    "peak_of",
    [
        lambda n: 100 - n,
        lambda n: max(100 - 3 * n, 60 - n / 2),  # two kinds of segments
        lambda n: 100 - n / 4 if n < 40 else 300 - 5.25 * n if n < 55 else 20 - n / 10,
    ],
)
def test_the_fewest_segments_are_found(peak_of: Callable[[int], float]) -> None:
    def at(n: int) -> Any:
        looked.append(n)
        return types.SimpleNamespace(n=n, cost=types.SimpleNamespace(peak_bytes=peak_of(n)))

    for limit in (25, 30, 45, 70, 95):
        looked: list[int] = []
        planned, n = _fewest(at, {0: at(0), 80: at(80)}, limit)
        assert planned.n == n  # type: ignore[attr-defined]
        assert peak_of(n) <= limit
        assert n == 1 or n - next(k for k in range(81) if peak_of(k) <= limit) <= 5
        assert len(looked) <= 2 + PROBES


def test_spare_memory_is_worth_what_segments_cost() -> None:
    """All segments cost 2 s and free 50 bytes, so that a byte is worth 40 ms."""

    def cost(seconds: float, peak_bytes: float) -> Any:
        return types.SimpleNamespace(seconds=seconds, peak_bytes=peak_bytes)

    (spare,) = _worth(cost(8.0, 150.0), cost(10.0, 100.0), 120.0, lambda c: c.seconds)
    score = scorer((ps.Fastest(), spare))
    assert score(cost(10.0, 120.0)).objective == score(cost(10.0, 130.0)).objective == 10.0
    assert score(cost(10.0, 100.0)).objective == pytest.approx(10.0 - 20 * 0.04)
    assert score(cost(10.0, 50.0)).objective == pytest.approx(8.0)  # none is left to spare
    assert score(cost(10.0, 100.0)) < score(cost(9.5, 118.0))
    assert is_monotone(spare)
    assert (
        _worth(cost(8.0, 150.0), cost(10.0, 160.0), 120.0, lambda c: c.seconds) == []
    )  # they free nothing
