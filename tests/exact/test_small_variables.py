"""Small variables eliminated at once, against enumeration and elimination one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partir_search.exact import small_variables
from partir_search.exact.elimination import eliminate, minimum_within
from partir_search.exact.pairwise import Labelling, ModelBuilder, PairwiseModel
from partir_search.exact.small_variables import eliminate_small
from tests.exact.models import enumerated, grid, random_model

SEEDS = st.integers(0, 100_000)
NEAR = 1e-9


@pytest.fixture
def from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of a single variable, too."""
    monkeypatch.setattr(small_variables, "LEAST_TOGETHER", 1)


def sparse(seed: int, variables: int, labels: int) -> PairwiseModel:
    """Trees with some more pairs: few variables have more than two neighbours."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, labels + 1, variables)
    built = ModelBuilder(sizes.tolist())
    for u in range(variables):
        built.add((u,), rng.normal(size=sizes[u]))
        for v in {int(rng.integers(0, max(u, 1))), u - 1 if rng.random() < 0.3 else -1}:
            if 0 <= v < u:
                built.add((v, u), rng.normal(size=(sizes[v], sizes[u])))
    return built.model()


@pytest.mark.usefixtures("from_one")
@pytest.mark.parametrize("labels", [4, 8, 10])
@pytest.mark.parametrize("density", [0.2, 0.5, 0.9])
def test_minima_are_kept(labels: int, density: float) -> None:
    for seed in range(20):
        model = random_model(seed, variables=5, labels=labels, density=density)
        before = [costs.copy() for costs in model.unary]
        small = eliminate_small(model)
        least, found = enumerated(model), enumerated(small.model)
        assert found.energy == pytest.approx(least.energy, abs=NEAR)
        lifted = small.lift(found)
        assert model.energy(lifted.labels) == pytest.approx(least.energy, abs=NEAR)
        assert all(np.array_equal(*pair) for pair in zip(before, model.unary, strict=True))


@given(SEEDS, st.sampled_from([3, 6, 10]))
@settings(max_examples=20, deadline=None)
def test_large_sparse_models(seed: int, labels: int) -> None:
    """Labels of both classes of padding, and variables that are not small beside them."""
    model = sparse(seed, 70, labels)
    small = eliminate_small(model)
    rest = eliminate(small.model)
    assert rest.energy == pytest.approx(eliminate(model).energy, abs=NEAR)
    assert model.energy(small.lift(rest).labels) == pytest.approx(rest.energy, abs=NEAR)


def test_chains_are_eliminated_in_few_rounds() -> None:
    model = grid(0, 1, 1000, 3)
    small = eliminate_small(model)
    left = sum(size > 1 for size in small.model.sizes)
    assert left < 6 * small_variables.LEAST_TOGETHER  # few of them are independent
    assert len(small.batches) < 40


def test_pairs_that_meet_are_added() -> None:
    """All variables but two are between the two: each leaves a table over the same pair."""
    rng = np.random.default_rng(0)
    built = ModelBuilder([3] * 40)
    built.add((0, 1), rng.normal(size=(3, 3)))
    for u in range(2, 40):
        built.add((0, u), rng.normal(size=(3, 3)))
        built.add((1, u), rng.normal(size=(3, 3)))
    model = built.model()
    small = eliminate_small(model)
    assert [*small.model.pairs] == [(0, 1)]
    assert enumerated(small.model).energy == pytest.approx(eliminate(model).energy, abs=NEAR)


def test_fixed_variables_keep_their_labels() -> None:
    model = grid(1, 12, 12, 3)
    start = Labelling(np.inf, np.ones(144, dtype=np.int64))
    found = minimum_within(model, start, 3**6)
    assert model.energy(found.labels) == pytest.approx(found.energy)
    assert found.energy <= model.energy(start.labels) + NEAR
