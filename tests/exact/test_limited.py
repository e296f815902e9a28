"""Minimisation within limits: multipliers against linear programs, labellings by enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from partir_search.exact.limited import LimitedBlock
from partir_search.exact.multipliers import best_multipliers
from partir_search.exact.pairwise import PairwiseModel
from partir_search.exact.repair import Changes, changed_singly
from tests.exact.models import random_model

SEEDS = st.integers(0, 100_000)
NEAR = 1e-7


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_multipliers_are_the_dual_of_a_linear_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points, limits = int(rng.integers(1, 12)), int(rng.integers(1, 5))
    costs = rng.normal(size=points).round(1)
    excesses = rng.normal(size=(points, limits)).round(1)
    highest = float(rng.choice([0.5, 10.0]))
    found = best_multipliers(costs, excesses, highest)
    # Largest t with t <= costs[k] + prices @ excesses[k] for all points.
    want = linprog(
        np.append(np.zeros(limits), -1.0),
        A_ub=np.hstack((-excesses, np.ones((points, 1)))),
        b_ub=costs,
        bounds=[*[(0.0, highest)] * limits, (None, None)],
    )
    assert found.value == pytest.approx(-want.fun, abs=NEAR)
    assert np.all((found.prices >= 0.0) & (found.prices <= highest))
    lagrangians = costs + excesses @ found.prices
    assert lagrangians[found.mixed] == pytest.approx(found.value, abs=NEAR)


def usages(seed: int, sizes: tuple[int, ...], limits: int) -> list[PairwiseModel]:
    """Positive models on the variables of another, with a pair that the other may not have."""
    rng = np.random.default_rng(seed)
    return [
        PairwiseModel(
            [rng.random(n).round(2) for n in sizes],
            {(0, 1): rng.random((sizes[0], sizes[1])).round(2)},
            0.1,
        )
        for _ in range(limits)
    ]


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_labellings_within_limits(seed: int) -> None:
    """The dual is below the optimum, the optimum below the labelling found."""
    model = random_model(seed, 4, 3)
    used = usages(seed, model.sizes, 2)
    each = [np.array(x) for x in itertools.product(*map(range, model.sizes))]
    costs = np.array([model.energy(x) for x in each])
    amounts = np.array([[u.energy(x) for u in used] for x in each])
    rng = np.random.default_rng(seed)
    most = amounts[rng.integers(len(each))] + 1e-9  # some labelling is within
    start = each[int(np.argmin(costs))]
    limited = LimitedBlock(model, start, model.all_labels(), 10_000)
    for usage, limit in zip(used, most, strict=True):
        limited.limit(usage, float(limit), 1.0)
    visited = limited.solve(limited.prices)
    assert all(len(x) == len(model.sizes) for x in visited)
    optimum = float(np.min(costs[np.all(amounts <= most, axis=1)]))
    lagrangians = costs + ((amounts / most) - 1.0) @ limited.prices
    assert float(np.min(lagrangians)) <= optimum + NEAR
    found = limited.cheapest_within()
    if found is None:  # none at any price up to the highest, which is a thousand times the cost
        return
    assert found.cost == pytest.approx(model.energy(found.labels))
    assert found.cost >= optimum - NEAR
    assert found.usages == pytest.approx([u.energy(found.labels) for u in used])
    assert np.all(np.array(found.usages) <= most + NEAR)


def chain(n: int) -> tuple[PairwiseModel, PairwiseModel]:
    """Costs and usage of n variables apart: the second label saves a byte each, at 1, 2, ..."""
    saving = [np.array([0.0, 1.0 + i]) for i in range(n)]
    return PairwiseModel(saving, {}, 100.0), PairwiseModel([np.array([1.0, 0.0])] * n, {}, 10.0)


@pytest.mark.parametrize(("limit", "cost"), [(20.0, 100.0), (17.0, 106.0), (16.5, 110.0)])
def test_as_many_changes_as_a_limit_needs(limit: float, cost: float) -> None:
    """Ten bytes to save: a limit three below costs the three cheapest, not all."""
    model, usage = chain(10)
    start = np.zeros(10, dtype=np.int64)
    limited = LimitedBlock(model, start, model.all_labels(), 1000)
    limited.limit(usage, limit, 1.0)
    limited.solve(limited.prices)
    found = limited.cheapest_within()
    assert found is not None
    assert found.cost == cost
    limited.tighten(0, 1.0)
    limited.solve()
    tighter = limited.cheapest_within()
    assert tighter is not None
    assert tighter.cost > cost


def test_changes_at_one_price_are_told_apart() -> None:
    """All changes have the same cost per byte: labellings at any price change all or none."""
    model = PairwiseModel([np.array([0.0, 1.0])] * 8, {}, 50.0)
    usage = PairwiseModel([np.array([1.0, 0.0])] * 8, {}, 0.0)
    start = np.zeros(8, dtype=np.int64)
    limited = LimitedBlock(model, start, model.all_labels(), 1000)
    limited.limit(usage, 5.0, 1.0)
    limited.solve(limited.prices)
    found = limited.cheapest_within()
    assert found is not None
    assert found.cost == 53.0


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_groups_of_changes_add_up(seed: int) -> None:
    model = random_model(seed)
    rng = np.random.default_rng(seed)
    low, high = (rng.integers(0, model.sizes) for _ in range(2))
    changes = Changes(model, low, high)
    total = changes.of(model).sum()
    assert total == pytest.approx(model.energy(high) - model.energy(low), abs=NEAR)
    used = usages(seed, model.sizes, 1)
    most = np.array([max(used[0].energy(high), 0.5 * used[0].energy(low)) + 1e-9])
    found = changes.within(used, most)
    for u in range(len(low)):
        assert found[u] in (low[u], high[u])


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_single_changes_end_within_or_at_no_more_excess(seed: int) -> None:
    model = random_model(seed, forbidden=0.0)
    used = usages(seed, model.sizes, 2)
    start = np.random.default_rng(seed).integers(0, model.sizes)
    most = np.array([0.8 * u.energy(start) for u in used])
    found = changed_singly(model, used, most, start)

    def excess(labels: np.ndarray) -> float:
        over = np.array([u.energy(labels) for u in used]) / most - 1.0
        return float(np.maximum(over, 0.0).sum())

    assert excess(found) <= excess(start) + NEAR
    if np.array_equal(found, start):  # no change is cheap enough, or none saves anything
        cheap = 0.2 * abs(model.energy(start))
        for u, n in enumerate(model.sizes):
            for label in range(n):
                other = start.copy()
                other[u] = label
                dearer = model.energy(other) - model.energy(start)
                assert excess(other) >= excess(start) - NEAR or dearer > cheap - NEAR or dearer > 0
