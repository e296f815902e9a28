"""Costs with a profile: as the file says, the same in simulator and tables, and in searches."""

from __future__ import annotations

import pytest

from experiments.random_states import random_partitions, ratios
from partir_search.planning.planner import Planner
from partir_search.simulator.tables.tables import CostTables
from partir_search.simulator.target.machine import MACHINES
from tests.profile.made_up import of_machine, with_segments
from tests.tables.test_cost_tables import GRID, NEAR, SQUARE, module_named


@pytest.mark.parametrize("machine", ["tpu_v5e", "h100"])
@pytest.mark.parametrize(
    "name", ["mlp 2 bias", "adam", "attention", "experts", "scanned", "convolved", "tied"]
)
def test_tables_agree_with_the_simulator(name: str, machine: str) -> None:
    """Exact where linearised, and never above as a bound, with random ratios of all kernels."""
    for mesh in (GRID, SQUARE):
        plain = MACHINES[machine]
        profile = of_machine(plain, mesh)
        rated = Planner(module_named(name), mesh, plain.with_profile(profile)).game(mesh.names)[1]
        seen = list(random_partitions(rated, 12, seed=3))
        profile = with_segments(profile, rated, seen[::2])
        known = Planner(module_named(name), mesh, plain.with_profile(profile)).game(mesh.names)[1]
        tables = CostTables(known.graph, known.model, known.mesh, known.state)
        found = ratios(known, tables, random_partitions(known, 20))
        for each in found:
            assert each.at == pytest.approx(1.0, abs=NEAR)
            assert max(each.below) <= 1.0 + NEAR
        assert max(r.below[1] for r in found) > 0.7
