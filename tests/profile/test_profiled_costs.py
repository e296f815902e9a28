"""Costs with a profile: as the file says, the same in simulator and tables, and in searches."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.random_states import random_partitions, ratios
from partir_search.planning.planner import Planner
from partir_search.simulator.tables.tables import CostTables
from partir_search.simulator.target.machine import MACHINES
from tests.profile.made_up import of_machine, with_segments
from tests.tables.test_cost_tables import GRID, NEAR, module_named


@pytest.mark.parametrize(
    ("name", "machine"), [("adam", "h100"), ("attention", "tpu_v5e"), ("scanned", "tpu_v5e")]
)
def test_tables_agree_with_the_simulator(name: str, machine: str) -> None:
    """Exact where linearised, and never above as a bound, with random ratios of all kernels."""
    module, plain = module_named(name), MACHINES[machine]
    profile = of_machine(plain, GRID)
    rated = Planner(module, GRID, plain.with_profile(profile)).game(GRID.names)[1]
    profile = with_segments(profile, rated, list(random_partitions(rated, 8, seed=3))[::2])
    known = Planner(module, GRID, plain.with_profile(profile)).game(GRID.names)[1]
    corrections = known.model.time.corrections
    assert corrections is not None
    states = list(random_partitions(known, 8))
    measured = np.array([corrections.measured(p).mean() for p in states])
    assert measured.max() > 0.0  # and some kernels are known at other sizes alone, or not at all
    assert measured.min() < 1.0
    tables = CostTables(known.graph, known.model, known.mesh, known.state)
    found = ratios(known, tables, iter(states))
    for each in found:
        assert each.at == pytest.approx(1.0, abs=NEAR)
        assert max(each.below) <= 1.0 + NEAR
    assert max(r.below[1] for r in found) > 0.7
