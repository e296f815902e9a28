"""Lower bounds of the cost tables: of copies, of hidden gathers, and of all partitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.random_states import random_partitions
from experiments.small_programs import enumerated
from partir_search.exact.elimination import least_completion
from partir_search.exact.pairwise import ModelBuilder
from partir_search.ir.mesh import MeshShape
from partir_search.lowering.localize import localize
from partir_search.mcts.game import play, rewind
from partir_search.simulator.tables import bound
from partir_search.simulator.tables.bound import bound_below
from partir_search.simulator.tables.copy_groups import CopyGroup, CopyUse
from partir_search.simulator.tables.hiding import HidingCompute
from partir_search.simulator.tables.tables import CostTables
from partir_search.simulator.tables.walk import trips_of
from tests.tables.test_cost_tables import GRID, NEAR, SQUARE, game_on


def random_copies(seed: int, count: int, tilings: int = 3, labels: int = 4) -> list[CopyUse]:
    """Uses of one value with random layouts; the cost of a copy depends on its layout."""
    rng = np.random.default_rng(seed)
    of_layout = rng.random((tilings, 4)).round(1)
    uses = []
    for u in range(count):
        layouts = rng.integers(-1, 4, (labels, tilings))
        costs = np.where(layouts >= 0, of_layout[np.arange(tilings), layouts], 0.0)
        uses.append(CopyUse(1 + u, costs, layouts))
    return uses


def paid(uses: list[CopyUse], tiling: int, labels: tuple[int, ...]) -> float:
    """Seconds if each layout is copied once."""
    copies = {
        int(use.layouts[x, tiling]): float(use.costs[x, tiling])
        for use, x in zip(uses, labels, strict=True)
    }
    return sum(cost for layout, cost in copies.items() if layout >= 0)


@given(st.integers(0, 100_000), st.integers(2, 4))
@settings(max_examples=40, deadline=None)
def test_copies_cost_at_least_their_bound(seed: int, count: int) -> None:
    """For all labels of the uses; with a variable for the copies, exact for two and three uses."""
    uses = random_copies(seed, count)
    group = CopyGroup.of(0, uses)
    shares, joint = (ModelBuilder([3, *[4] * count]) for _ in range(2))
    group.add_shares(shares)
    group.add_joint(joint, 1000.0)
    shared, whole = shares.model(), joint.model()
    for tiling, *labels in itertools.product(range(3), *[range(4)] * count):
        true, at = paid(uses, tiling, tuple(labels)), np.array([tiling, *labels])
        bound = least_completion(whole, at)
        assert shared.energy(at) <= true + 1e-9
        assert bound == pytest.approx(true) if count < 4 else bound <= true + 1e-9


@pytest.mark.parametrize("name", ["mlp 2 bias", "attention", "scanned"])
def test_gathers_run_beside_no_more_compute_than_the_bound(name: str) -> None:
    """With all labels, with those of the visited states, and with those of one state alone, which
    bounds more tightly.
    """
    game = game_on(name, GRID, "tpu_v5e")
    tables = CostTables(game.graph, game.model, game.mesh, game.state)
    partitions = [p for p in random_partitions(game, 20) if p.order == (0, 1)]
    labels = np.array([tables.labels_of(p) for p in partitions])
    kept = [np.unique(column) for column in labels.T]
    every = [np.arange(n) for n in tables.variables.sizes]
    fastest = min(labels, key=lambda each: float(tables.ordered((0, 1)).seconds(each).sum()))
    alone = fastest[None]
    widest, orders = [], game.model.time.orders
    for subset, visited in ((every, labels), (kept, labels), (alone.T, alone)):
        ordered = tables.ordered((0, 1)).restricted(subset)
        hiding = HidingCompute(ordered.kernels, ordered.regions, orders, trips_of(game.model))
        bounds = [hiding.before(use) for use in ordered.uses]
        before = [
            np.sum([s * m for s, m in zip(b.shares, b.most, strict=True)], axis=0) for b in bounds
        ]
        widest.append(sum(float(each.max()) for each in before))
        for each in visited:
            at = np.array([k.searchsorted(x) for k, x in zip(subset, each, strict=True)])
            early = ordered.walk(at).early
            for use, seconds, most in zip(ordered.uses, early, before, strict=True):
                place = [at[x] for x in use.table.scope]
                whole = np.broadcast_to(most, use.table.items.shape)
                assert seconds <= float(whole[tuple(place)]) * (1.0 + 1e-9)
    assert 0.0 < widest[2] < widest[1] <= widest[0]


@pytest.mark.parametrize("machine", ["tpu_v5e", "tpu_v5p", "h100"])
@pytest.mark.parametrize("name", ["linear", "mlp 2", "mlp 3", "mlp 4 loss", "classifier"])
@pytest.mark.parametrize("mesh", [MeshShape(("data",), (4,)), GRID], ids=["line", "grid"])
def test_no_enumerated_plan_is_below_the_bound(name: str, machine: str, mesh: MeshShape) -> None:
    """Over both orders of axes, and the best plan is found where the bound is met."""
    game = game_on(name, mesh, machine)
    record = enumerated(game, 4000)
    if record is None:
        pytest.skip("the space is too large")
    played = len(list(play(game, record.best.path)))
    partition, seconds = game.state.partition(), game.cost().seconds
    rewind(game, played)
    tables = CostTables(game.graph, game.model, game.mesh, game.state)
    loose = bound_below(tables, partition, 100.0 * seconds)
    tight = bound_below(tables, partition, seconds)
    early = bound_below(tables, partition, seconds, should_continue=lambda: False)
    hurried = bound_below(tables, partition, 2.0 * seconds, promising=0.0)
    resumed = bound_below(tables, partition, seconds, known=hurried)
    assert 0.0 < early.seconds <= tight.seconds * (1.0 + 1e-9)
    assert hurried.seconds <= resumed.seconds * (1.0 + 1e-9)
    assert resumed.seconds <= seconds * (1.0 + NEAR)
    assert resumed.finished
    assert resumed.seconds >= tight.seconds * (1.0 - 1e-3)
    assert max(loose.seconds, tight.seconds) <= seconds * (1.0 + NEAR)
    assert tight.seconds >= loose.seconds * (1.0 - 1e-5)
    for labels in loose.found:
        tables.variables.assign(labels, game.state)
        program = localize(game.state.partition(), game.cache, sparse=True)
        found = game.model.evaluate(program).seconds
        assert found >= loose.seconds * (1.0 - NEAR)


@pytest.mark.parametrize("name", ["mlp 4 loss", "attention", "scanned"])
def test_multipliers_of_gathers_raise_the_bound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy cannot hide behind compute that hides another, or that lies elsewhere.

    Turns taken later lead to the same bound.
    """
    game = game_on(name, GRID, "tpu_v5e")
    tables = CostTables(game.graph, game.model, game.mesh, game.state)
    each = list(random_partitions(game, 12))
    costs = [game.model.evaluate(localize(p, game.cache, sparse=True)).seconds for p in each]
    seconds, partition = min(zip(costs, each, strict=True), key=lambda pair: pair[0])
    with_multipliers = bound_below(tables, partition, seconds, effort=10.0)
    few = bound_below(tables, partition, seconds, effort=10.0, turns=1)
    assert few.seconds < with_multipliers.seconds
    assert few.in_full() == few.in_full() == with_multipliers.seconds
    monkeypatch.setattr(bound, "TURNS", 0)
    without = bound_below(tables, partition, seconds, effort=10.0)
    assert without.seconds < with_multipliers.seconds <= seconds


def test_orders_of_like_axes_have_one_bound() -> None:
    """Axes of equal size and links can be exchanged; others cannot."""
    game = game_on("mlp 3", SQUARE, "tpu_v5e")
    tables = CostTables(game.graph, game.model, game.mesh, game.state)
    assert tables.orders_from((1, 0)) == [(1, 0)]
    partition = next(random_partitions(game, 1))
    least = []
    for order in tables.orders:
        tables.orders_from = lambda first, order=order: [order]  # type: ignore[method-assign]
        least.append(bound_below(tables, partition, 1.0).seconds)
    assert least[0] == pytest.approx(least[1], rel=1e-9)
    game = game_on("mlp 3", GRID, "tpu_v5e")
    tables = CostTables(game.graph, game.model, game.mesh, game.state)
    assert tables.orders_from((1, 0)) == [(1, 0), (0, 1)]
