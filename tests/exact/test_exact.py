"""Exact minima, bounds and removals against enumeration of small models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partir_search.exact import elimination
from partir_search.exact.alternation import Choices, Turns, alternate, improve
from partir_search.exact.elimination import (
    eliminate,
    elimination_order,
    least_completion,
    minimum_within,
)
from partir_search.exact.pairwise import Labelling, ModelBuilder, PairwiseModel
from partir_search.exact.proof import prove
from partir_search.exact.tree_bound import TreeBound
from tests.calls import calls_of
from tests.exact.models import enumerated, grid, random_model

SEEDS = st.integers(0, 100_000)
NEAR = 1e-9


def random_labels(model: PairwiseModel, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, model.sizes)


@given(SEEDS)
@settings(max_examples=200, deadline=None)
def test_elimination_is_exact(seed: int) -> None:
    model = random_model(seed)
    found = eliminate(model)
    assert found.energy == pytest.approx(enumerated(model).energy, abs=NEAR)
    assert model.energy(found.labels) == pytest.approx(found.energy, abs=NEAR)


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_restriction_keeps_energies(seed: int) -> None:
    model = random_model(seed)
    rng = np.random.default_rng(seed)
    kept = [np.sort(rng.permutation(n)[: rng.integers(1, n + 1)]) for n in model.sizes]
    rest = model.restricted(kept)
    assert not any(1 in table.shape for table in rest.pairs.values())
    labels = random_labels(rest, seed)
    whole = np.array([k[x] for k, x in zip(kept, labels, strict=True)])
    assert rest.energy(labels) == pytest.approx(model.energy(whole), abs=NEAR)


@given(SEEDS)
@settings(max_examples=200, deadline=None)
def test_bounds_are_below_the_minimum_and_never_fall(seed: int) -> None:
    model = random_model(seed)
    tree, least = TreeBound(model), enumerated(model).energy
    before = -np.inf
    for _ in range(8):
        after = tree.sweep()
        assert before <= after <= least + NEAR
        before = after


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_bounds_with_a_label_are_below_its_minimum(seed: int) -> None:
    model = random_model(seed, variables=5)
    tree = TreeBound(model)
    tree.run(5)
    for u, bounds in enumerate(tree.label_bounds):
        for x, bound in enumerate(bounds):
            kept = model.all_labels()
            kept[u] = np.array([x])
            assert bound <= eliminate(model.restricted(kept)).energy + NEAR


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_bounds_hold_from_any_messages(seed: int) -> None:
    """Messages of another model, or random ones, are as good a start as zeros."""
    model, rng = random_model(seed), np.random.default_rng(seed)
    messages = {
        (u, v): rng.normal(size=model.sizes[v])
        for pair in model.pairs
        for u, v in (pair, pair[::-1])
    }
    least = enumerated(model).energy
    tree = TreeBound(model, messages=messages)
    assert tree.run(5) <= least + NEAR
    again = TreeBound(model, tree.order, tree.messages(model.all_labels()))
    assert tree.value - NEAR <= again.run(5) <= least + NEAR


@given(SEEDS)
@settings(max_examples=50, deadline=None)
def test_least_completion(seed: int) -> None:
    model = random_model(seed)
    first = random_labels(model, seed)[:3]
    kept = [*first[:, None], *model.all_labels()[3:]]
    expected = enumerated(model.restricted(kept)).energy
    assert least_completion(model, first) == pytest.approx(expected, abs=NEAR)


def test_the_bound_of_a_tree_is_exact() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        built = ModelBuilder([5] * 12)
        for v in range(12):
            built.add((v,), rng.random(5))
            if v:
                built.add((int(rng.integers(0, v)), v), rng.random((5, 5)))
        model = built.model()
        tree = TreeBound(model)
        assert tree.run(50, least_gain=0.0) == pytest.approx(eliminate(model).energy)
        assert model.energy(tree.decode()) == pytest.approx(eliminate(model).energy)


@given(SEEDS, st.sampled_from([0.0, 0.1, 1.0, -0.5]), st.sampled_from([8, 10**6]))
@settings(max_examples=200, deadline=None)
def test_proofs(seed: int, above: float, max_entries: int) -> None:
    """Whatever the upper bound, a proof's bound is right and a minimum below it is kept."""
    model = random_model(seed)
    least = enumerated(model).energy
    proof = prove(model, least + above, max_entries=max_entries)
    assert proof.bound <= least + 1e-6
    assert model.energy(proof.best.labels) == pytest.approx(proof.best.energy, abs=NEAR)
    assert proof.best.energy >= least - NEAR
    if proof.exact:
        assert proof.best.energy == pytest.approx(least, abs=1e-6)
    if above >= 0.0:
        assert eliminate(model.restricted(proof.kept)).energy == pytest.approx(least, abs=1e-6)


def test_removals_make_elimination_fit() -> None:
    """A wide grid is solved once the bound has ruled out most labels."""
    model = grid(0, 7, 7, 5, strength=0.5)
    assert elimination_order(model).largest > 10_000
    upper = eliminate(model).energy
    proof = prove(model, upper, max_entries=10_000, sweeps=200, rounds=6)
    assert proof.exact
    assert proof.best.energy == pytest.approx(upper)


@given(SEEDS, st.sampled_from([1, 4, 16, 64]))
@settings(max_examples=100, deadline=None)
def test_capped_minima_never_rise(seed: int, max_entries: int) -> None:
    model = random_model(seed, density=0.9)
    labels = random_labels(model, seed)
    start = Labelling(model.energy(labels), labels)
    found = minimum_within(model, start, max_entries)
    assert found.energy <= start.energy + NEAR
    assert model.energy(found.labels) == pytest.approx(found.energy, abs=NEAR)


def test_capped_minima_are_exact_where_tables_fit() -> None:
    model = grid(1, 4, 4, 3)
    start = Labelling(model.energy(np.zeros(16, dtype=int)), np.zeros(16, dtype=int))
    assert minimum_within(model, start, 10**6).energy == pytest.approx(eliminate(model).energy)


def two_axes(model: PairwiseModel, n: int) -> list[list[np.ndarray]]:
    """Blocks of labels that are pairs below n: label = first * n + second."""
    return [
        [np.arange(size) % n for size in model.sizes],
        [np.arange(size) // n for size in model.sizes],
    ]


@given(SEEDS)
@settings(max_examples=50, deadline=None)
def test_alternation_is_monotone(seed: int) -> None:
    model = grid(seed, 2, 3, 9)
    blocks = two_axes(model, 3)
    start = random_labels(model, seed)
    found = alternate(
        lambda _, kept: model.restricted(kept), model.energy, blocks, start, rounds=10
    )
    energies = [each.energy for each in found.visited]
    assert energies == sorted(energies, reverse=True)
    assert found.best.energy == min(energies)
    for block in blocks:  # nothing is left to gain in any block
        kept = Choices()(block, found.best.labels)
        again = improve(model.restricted(kept), found.best.labels, kept, 10**6)
        assert again.energy == pytest.approx(found.best.energy)


def test_alternation_minimises_a_block_exactly() -> None:
    model = grid(3, 2, 2, 4)
    (block, _), start = two_axes(model, 2), np.array([3, 0, 1, 2])
    own = [np.flatnonzero(g == g[x]) for g, x in zip(block, start, strict=True)]
    found = improve(model.restricted(own), start, own, 10**6)
    assert found.energy == pytest.approx(enumerated(model.restricted(own)).energy)
    assert all(x in k for x, k in zip(found.labels, own, strict=True))


def test_alternation_follows_costs_that_change_with_the_labelling() -> None:
    """Costs of max(x, y) as tables that hold the larger at the labelling: exact there."""
    rng = np.random.default_rng(0)
    one, two = rng.random((5, 4)), rng.random((5, 4))

    def true_cost(labels: np.ndarray) -> float:
        picked = [max(one[u, x], two[u, x]) for u, x in enumerate(labels)]
        return float(sum(picked) + 0.3 * sum(abs(np.diff(labels))))

    def costs_at(labels: np.ndarray, kept: Sequence[np.ndarray]) -> PairwiseModel:
        built = ModelBuilder([4] * 5)
        for u, x in enumerate(labels):
            built.add((u,), one[u] if one[u, x] > two[u, x] else two[u])
            if u:
                built.add((u - 1, u), 0.3 * np.abs(np.arange(4)[:, None] - np.arange(4)))
        return built.model().restricted(kept)

    start = np.array([0, 1, 2, 3, 0])
    assert costs_at(start, [np.arange(4)] * 5).energy(start) == pytest.approx(true_cost(start))
    found = alternate(costs_at, true_cost, [[np.zeros(4, dtype=int)] * 5], start)
    assert found.best.energy == true_cost(found.best.labels) < true_cost(start)


def test_alternation_repeats_no_turn_of_earlier_calls() -> None:
    model = grid(5, 2, 3, 9)
    asked: list[bytes] = []

    def costs_at(labels: np.ndarray, kept: Sequence[np.ndarray]) -> PairwiseModel:
        asked.append(labels.tobytes())
        return model.restricted(kept)

    turns: Turns = {}
    blocks, start = two_axes(model, 3), random_labels(model, 5)
    found = alternate(costs_at, model.energy, blocks, start, turns=turns)
    assert len(found.visited) > 1
    assert len(asked) == len(turns) > 1
    asked.clear()
    again = alternate(costs_at, model.energy, blocks, start, turns=turns)
    assert not asked
    assert np.array_equal(again.best.labels, found.best.labels)
    other = alternate(costs_at, model.energy, blocks, start, turns=turns, rounds=1, first=1)
    assert asked[0] == start.tobytes()  # the other block's turn there was never taken
    changed = np.flatnonzero(other.visited[1].labels != start)
    assert len(changed)
    assert all(blocks[1][u][start[u]] == blocks[1][u][other.visited[1].labels[u]] for u in changed)


def test_alternation_far_from_the_best_known_ends_early() -> None:
    """Costs fall by 1 a turn, so that 20 turns lead from 100 to 80."""
    model = PairwiseModel([np.arange(101.0)], {})
    blocks = [[np.zeros(101, dtype=int)]] * 2

    def costs_at(labels: np.ndarray, kept: Sequence[np.ndarray]) -> PairwiseModel:
        near = np.where(np.arange(101) == labels[0] - 1, -1.0, np.arange(101.0) + 1.0)
        return PairwiseModel([near], {}).restricted(kept)

    start = np.array([100])
    turns = {
        beat: len(alternate(costs_at, model.energy, blocks, start, rounds=10, beat=beat).visited)
        for beat in (np.inf, 80.5, 79.0)
    }
    assert turns == {np.inf: 21, 80.5: 21, 79.0: 5}


@pytest.mark.parametrize("seed", range(6))
def test_sums_in_blocks_are_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit, for blocks smaller and larger than an axis, and for axes of one label."""
    rng = np.random.default_rng(seed)
    scope = rng.integers(1, 5, 6)
    shapes = [[3, *np.where(rng.random(6) < 0.5, scope, 1).tolist()] for _ in range(2)]
    one, other = (rng.random(shape) for shape in shapes)
    whole = (one + other).min(axis=0)
    monkeypatch.setattr(elimination, "BLOCKED", 0)
    for block in (1, 7, 1 << 14):
        monkeypatch.setattr(elimination, "BLOCK", block)
        assert np.array_equal(elimination._least_sum(one, other), whole)


def test_elimination_by_blocks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = grid(3, 5, 5, 5)
    order = elimination_order(model)
    whole = eliminate(model, order)
    assert order.largest < elimination.BLOCKED
    for name in ("LARGE", "BLOCKED"):
        monkeypatch.setattr(elimination, name, 100)
    found = eliminate(model, order)
    assert found.energy == whole.energy
    assert np.array_equal(found.labels, whole.labels)


def test_order_is_that_of_the_tables() -> None:
    model = grid(2, 3, 7, 4)
    order = elimination_order(model)
    assert sorted(order.variables) == list(range(21))
    assert order.width == 3
    assert order.largest == 4 ** (order.width + 1)


def test_large_models_take_linear_time() -> None:
    """Chains of width 2: 800 variables of 16 labels take four times the calls of 200."""
    rng = np.random.default_rng(0)

    def calls(size: int) -> int:
        built = ModelBuilder([16] * size)
        for v in range(size):
            built.add((v,), rng.random(16))
            for u in (v - 1, v - 2):
                if u >= 0:
                    built.add((u, v), rng.random((16, 16)))
        model, least = built.model(), list[float]()

        def run() -> None:
            least.extend((eliminate(model).energy, TreeBound(model).sweep()))

        made = calls_of(run)
        assert least[0] >= least[1]
        return made

    assert calls(800) < 5 * calls(200)
