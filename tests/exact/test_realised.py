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
