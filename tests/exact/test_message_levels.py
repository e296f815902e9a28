"""Messages of a level at once, against messages of one variable after another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partir_search.exact import message_levels
from partir_search.exact.arrays import Floats
from partir_search.exact.pairwise import PairwiseModel
from partir_search.exact.tree_bound import TreeBound
from tests.exact.models import grid, random_model

NEAR = 1e-9


def one_by_one(model: PairwiseModel, order: list[int], sweeps: int) -> float:
    """Bound by sequential message passing, as published (TRW-S, Kolmogorov 2006)."""
    near, rank = model.neighbours, {u: i for i, u in enumerate(order)}
    messages: dict[tuple[int, int], Floats] = {
        (v, u): np.zeros(model.sizes[u]) for u in order for v, _ in near[u]
    }
    value = -np.inf
    for turn in range(2 * sweeps):
        bound = model.constant
        for u in order if turn % 2 == 0 else order[::-1]:
            costs = model.unary[u] + sum(messages[v, u] for v, _ in near[u])
            bound += costs.min()
            costs = costs - costs.min()
            later = [rank[v] > rank[u] for v, _ in near[u]]
            weight = 1.0 / max(sum(later), len(later) - sum(later), 1)
            for (v, table), is_later in zip(near[u], later, strict=True):
                if is_later == (turn % 2 == 0):
                    rest = (weight * costs - messages[v, u])[:, None] + table
                    found = rest.min(axis=0)
                    bound += found.min()
                    messages[u, v] = found - found.min()
        value = max(value, bound)
    return float(value)


@given(st.integers(0, 100_000), st.sampled_from([0.2, 0.5, 0.9]))
@settings(max_examples=50, deadline=None)
def test_bounds_are_those_of_single_messages(seed: int, density: float) -> None:
    model = random_model(seed, variables=8, density=density)
    tree = TreeBound(model)
    for _ in range(3):
        tree.sweep()
    assert tree.value == pytest.approx(one_by_one(model, tree.order, 3), abs=NEAR)


@pytest.mark.parametrize(("together", "padded"), [(1, 1.0), (64, 0.5), (1 << 20, 0.1)])
def test_groups_of_messages_change_nothing(
    together: int, padded: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_levels, "TOGETHER", together)
    monkeypatch.setattr(message_levels, "PADDED", padded)
    for model in (grid(0, 5, 5, 4), *(random_model(seed, variables=9) for seed in range(9))):
        tree = TreeBound(model)
        for _ in range(3):
            tree.sweep()
        assert tree.value == pytest.approx(one_by_one(model, tree.order, 3), abs=NEAR)
