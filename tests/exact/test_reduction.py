"""Reduced models against enumeration and elimination of the first models."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partir_search.exact.elimination import eliminate
from partir_search.exact.reduction import reduce
from partir_search.exact.tree_bound import TreeBound
from tests.exact.models import enumerated, grid, random_model

SEEDS = st.integers(0, 100_000)
NEAR = 1e-9


@given(SEEDS, st.sampled_from([0.2, 0.5, 0.9]), st.sampled_from([4, 16, 1 << 16]))
@settings(max_examples=200, deadline=None)
def test_minima_are_kept(seed: int, density: float, max_entries: int) -> None:
    model = random_model(seed, density=density)
    before = [costs.copy() for costs in model.unary]
    reduction = reduce(model, max_entries)
    least = enumerated(model)
    found = enumerated(reduction.model)
    assert found.energy == pytest.approx(least.energy, abs=NEAR)
    labels = reduction.lift(found).labels
    assert model.energy(labels) == pytest.approx(least.energy, abs=NEAR)
    assert all(np.array_equal(*pair) for pair in zip(before, model.unary, strict=True))


@given(SEEDS, st.sampled_from([0.2, 0.5]))
@settings(max_examples=100, deadline=None)
def test_bounds_with_a_label_are_below_its_minimum(seed: int, density: float) -> None:
    model = random_model(seed, variables=5, density=density)
    reduction = reduce(model, 16)
    tree = TreeBound(reduction.model)
    tree.run(5)
    for u, bounds in enumerate(reduction.label_bounds(tree.label_bounds, tree.value)):
        assert len(bounds) == model.sizes[u]
        for x, bound in enumerate(bounds):
            kept = model.all_labels()
            kept[u] = np.array([x])
            assert bound <= eliminate(model.restricted(kept)).energy + NEAR


def test_chains_and_trees_reduce_to_a_constant() -> None:
    model = random_model(3, variables=2, density=1.0)
    chain = grid(0, 1, 9, 4)
    for each in (model, chain):
        reduction = reduce(each)
        assert set(reduction.model.sizes) == {1}
        assert not reduction.model.pairs
        least = eliminate(each)
        assert reduction.model.energy(np.zeros(len(each.sizes), dtype=int)) == pytest.approx(
            least.energy
        )


def test_bounds_of_a_tree_are_minima() -> None:
    """Each label's bound is the minimum with the label where nothing but the reduction is left."""
    model = grid(0, 1, 6, 3)
    reduction = reduce(model)
    value = TreeBound(reduction.model).sweep()
    for u, bounds in enumerate(
        reduction.label_bounds([np.full(1, value)] * len(model.sizes), value)
    ):
        for x, bound in enumerate(bounds):
            kept = model.all_labels()
            kept[u] = np.array([x])
            assert bound == pytest.approx(eliminate(model.restricted(kept)).energy)
