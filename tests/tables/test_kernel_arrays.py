"""Kernels as arrays, against kernels one by one."""

from __future__ import annotations

import numpy as np
import pytest

from partir_search.exact.pairwise import ModelBuilder
from partir_search.simulator.tables.kernel_arrays import KernelArrays
from partir_search.simulator.tables.kernel_readings import KernelReadings, read_kernel
from partir_search.simulator.tables.ordered import OrderedTables
from partir_search.simulator.tables.tables import CostTables
from tests.tables.test_cost_tables import GRID, game_on


def tables_of(name: str, machine: str) -> OrderedTables:
    game = game_on(name, GRID, machine)
    return CostTables(game.graph, game.model, game.mesh, game.state).ordered((0, 1))


@pytest.mark.parametrize("machine", ["tpu_v5e", "h100"])
@pytest.mark.parametrize("name", ["mlp 2 bias", "attention", "scanned", "classifier"])
def test_arrays_of_kernels_are_the_kernels(name: str, machine: str) -> None:
    """Seconds and readings at random labels, with all kernels and some, and of fewer labels."""
    rng = np.random.default_rng(0)
    every = tables_of(name, machine)
    some = [np.flatnonzero(rng.random(n) < 0.6) for n in every.sizes]
    some = [kept if len(kept) else np.array([0]) for kept in some]
    for ordered in (every, every.restricted(some)):
        kernels, sizes = ordered.kernels, ordered.sizes
        arrays = KernelArrays(kernels, KernelReadings(kernels, sizes), sizes)
        for _ in range(4):
            labels, other = (np.array([rng.integers(n) for n in sizes]) for _ in range(2))
            counted = rng.random(len(kernels)) < 0.8
            one_by_one = [kernel.at(labels.tolist()) for kernel in kernels]
            assert arrays.seconds(labels) == pytest.approx(np.array(one_by_one), rel=1e-12)
            for exact in (False, True):
                built = ModelBuilder(sizes)
                for kernel in (kernels[k] for k in np.flatnonzero(counted)):
                    read_kernel(kernel, labels.tolist(), sizes, exact=exact).add_to(built)
                found = arrays.model(labels, counted, exact=exact)
                for each in (labels, other):
                    assert found.energy(each) == pytest.approx(
                        built.model().energy(each), rel=1e-12
                    )


def test_no_kernels() -> None:
    arrays = KernelArrays([], KernelReadings([], [2, 3]), [2, 3])
    found = arrays.model(np.array([0, 1]), np.zeros(0, dtype=np.bool_), exact=True)
    assert found.energy(np.array([1, 2])) == 0.0
    assert not len(arrays.seconds(np.array([0, 1])))
