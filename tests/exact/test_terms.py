"""Sums of tables as one array, against the tables one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from partir_search.exact.arrays import Floats, Pair
from partir_search.exact.pairwise import ModelBuilder, PairwiseModel
from partir_search.exact.ragged import Ragged, cells
from partir_search.exact.terms import PairTables, Subset, Terms

SIZES = [3, 1, 4, 2, 1]


def tables(seed: int) -> list[tuple[Pair, Floats]]:
    """Tables of all pairs, some twice and some with descending variables."""
    rng, pairs = np.random.default_rng(seed), [*itertools.combinations(range(len(SIZES)), 2)]
    pairs += [(v, u) for u, v in pairs[::2]]
    return [((u, v), rng.normal(size=(SIZES[u], SIZES[v]))) for u, v in pairs]


@pytest.mark.parametrize("seed", range(4))
def test_sums_are_those_of_a_builder(seed: int) -> None:
    """Of all labels and of subsets, with variables of one label, at every labelling."""
    rng, each = np.random.default_rng(seed), tables(seed)
    single = [rng.normal(size=size) for size in SIZES]
    alone = Terms.single(Ragged.of(single))
    builder = ModelBuilder(SIZES)
    for u, costs in enumerate(single):
        builder.add((u,), costs)
    for scope, table in each:
        builder.add(scope, table)
    kept = [np.sort(rng.choice(n, size=rng.integers(1, n + 1), replace=False)) for n in SIZES]
    some, terms = Subset.of(kept), Terms.of(each)
    whole = PairwiseModel.of_terms(SIZES, [alone, terms], 0.5)
    parts = [part.at_labels(some, SIZES) for part in (alone, terms)]
    part = PairwiseModel.of_terms([*map(len, kept)], parts, 0.5)
    assert not any(1 in table.shape for model in (whole, part) for table in model.pairs.values())
    for labels in itertools.product(*map(range, SIZES)):
        x = np.array(labels)
        total = sum(float(table[x[u], x[v]]) for (u, v), table in each)
        total += sum(float(costs[label]) for costs, label in zip(single, labels, strict=True))
        assert whole.energy(x) == pytest.approx(total + 0.5)
        assert whole.energies(np.stack([x, x])) == pytest.approx([total + 0.5] * 2)
        assert builder.model().energy(x) == pytest.approx(total)
        assert alone.energy(x, SIZES) + terms.energy(x, SIZES) == pytest.approx(total)
        if all(label in k for label, k in zip(labels, kept, strict=True)):
            assert part.energy(some.positions(x)) == pytest.approx(total + 0.5)
            assert whole.restricted(kept).energy(some.positions(x)) == pytest.approx(total + 0.5)


def test_parts_of_terms() -> None:
    """Tables chosen, joined and scaled, by pair."""
    each = tables(0)[:10]  # every pair once
    terms = Terms.of(each)
    odd = np.arange(len(each)) % 2 == 1
    both = terms.part(odd).joined(terms.part(~odd)).times(2.0)
    found = PairTables(both, SIZES)
    assert len(found) == len(each)
    assert [*found][:2] == [(0, 2), (0, 4)]
    for pair, table in each:
        np.testing.assert_allclose(found[pair], 2.0 * table)
    assert PairTables.of(found, SIZES) is found


def test_terms_of_rows_and_of_several_parts() -> None:
    """Tables by rows, values of each, all parts in order, and a builder from a model's copy."""
    each = tables(0)[:10]
    terms, labels = Terms.of(each), np.array([2, 0, 1, 1, 0])
    ends = [(u, v) for (u, v), _ in each]
    rows = Terms.of_rows(ends, [table.ravel() for _, table in each])
    expected = [table[labels[u], labels[v]] for (u, v), table in each]
    assert rows.values(labels, SIZES).tolist() == terms.values(labels, SIZES).tolist() == expected
    both = Terms.all([terms, Terms.of_rows([], []), rows])
    assert both.values(labels, SIZES).tolist() == [*expected, *expected]
    model = PairwiseModel.of_terms(SIZES, [both], 1.0)
    before, builder = model.energy(labels), ModelBuilder.of(model)
    for scope, table in each:
        builder.add(scope, -2.0 * table)
    assert builder.model().energy(labels) == pytest.approx(1.0)
    assert model.energy(labels) == before


def test_arrays_of_different_lengths() -> None:
    arrays = [np.arange(3.0), np.zeros(0), np.array([7.0])]
    ragged = Ragged.of(arrays)
    assert Ragged.of(ragged) is ragged
    assert len(ragged) == 3
    assert [a.tolist() for a in ragged] == [a.tolist() for a in arrays]
    assert [a.tolist() for a in ragged[1:]] == [[], [7.0]]
    assert ragged[-1].tolist() == [7.0]
    owners, places = cells(np.array([2, 0, 3]))
    assert owners.tolist() == [0, 0, 2, 2, 2]
    assert places.tolist() == [0, 1, 0, 1, 2]
