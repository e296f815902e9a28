"""Exact steps from assignments that partitions realise with other labels."""

from __future__ import annotations

import numpy as np
import pytest

from partir_search.planning.fitted_steps import FittedSteps
from tests.tables.test_cost_tables import GRID, game_on


@pytest.mark.parametrize("name", ["attention", "tied"])
def test_labels_are_those_of_the_partition(name: str) -> None:
    """Sums that meet in an op without a loop pass the op, whatever the labels say."""
    steps = FittedSteps(game_on(name, GRID, "tpu_v5e"))
    sizes, rng, others = steps.tables.variables.sizes, np.random.default_rng(0), 0
    for _ in range(8):
        labels = rng.integers(0, sizes)
        found = steps.realised(labels)
        others += not np.array_equal(found, labels)
        np.testing.assert_array_equal(steps.realised(found), found)
        assert steps.scored(found).score == steps.scored(labels).score
        best = steps.improve(labels)[0]
        assert best.score.rank() <= steps.scored(labels).score.rank()
        steps.fit(best)
    assert others


@pytest.mark.parametrize("name", ["mlp 2 bias", "attention"])
def test_combinations_take_labels_of_either(name: str) -> None:
    """Each variable has the label of one of the assignments, and together they are faster."""
    steps = FittedSteps(game_on(name, GRID, "tpu_v5e"))
    sizes, rng, faster = steps.tables.variables.sizes, np.random.default_rng(0), 0
    for _ in range(6):
        pair = [steps.scored(steps.realised(rng.integers(0, sizes))) for _ in range(2)]
        best, other = sorted(pair, key=lambda each: each.score.rank())
        found = steps.combined(best, [other])
        assert found.score.scalar() <= best.score.scalar()
        faster += found is not best
        either = (found.labels == best.labels) | (found.labels == other.labels)
        assert either.mean() > 0.9  # sums that pass an op have further labels
        assert steps.combined(found, [found]) is found
    assert faster
