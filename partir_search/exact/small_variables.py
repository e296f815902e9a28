"""Elimination of many variables of few labels at once.

Small variables with at most two neighbours, none of them adjacent, are eliminated together, in
arrays padded to the same number of labels. A chain of n variables takes about log(n)
rounds. The reduced model is pairwise with the same minimum, as in `exact/reduction.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from partir_search.exact.arrays import Bools, Floats, Ints
from partir_search.exact.pairwise import Labelling, PairwiseModel
from partir_search.exact.ragged import Ragged, cells, starts_of
from partir_search.exact.terms import PairTables, Terms

MOST_LABELS = 8  # of a small variable
FEW_LABELS = 4  # padded size of variables with no more labels, like their neighbours
LEAST_TOGETHER = 12  # variables of a round


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class _Batch:
    """Variables eliminated at once.

    Attributes:
      variables: [k] variables.
      scopes: [k, neighbours] neighbours of each.
      costs: [k, labels, labels of the neighbours ...] costs.
    """

    variables: Ints
    scopes: Ints
    costs: Floats

    def choose(self, labels: Ints) -> None:
        """Writes the labels of least cost, given those of the neighbours."""
        at = (np.arange(len(self.variables)), slice(None), *labels[self.scopes].T)
        labels[self.variables] = self.costs[at].argmin(axis=1)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class SmallReduction:
    """A model without most of its small variables.

    Attributes:
      model: model over the same variables; an eliminated variable has one label at no cost.
      batches: eliminations in order.
    """

    model: PairwiseModel
    batches: Sequence[_Batch]

    def lift(self, found: Labelling) -> Labelling:
        """Labelling of the first model, of equal energy, for a labelling of the reduced model."""
        labels = np.array(found.labels, dtype=np.int64)
        for batch in reversed(self.batches):
            batch.choose(labels)
        return Labelling(found.energy, labels)


def eliminate_small(model: PairwiseModel) -> SmallReduction:
    """Eliminates small variables with at most two neighbours, as long as many are independent."""
    small, batches = _Small(model), list[_Batch]()
    while True:
        chosen = small.independent()
        if len(chosen) < LEAST_TOGETHER:
            break
        batches += small.eliminate(chosen)
    return SmallReduction(small.rest(), batches)


class _Small:
    """Costs of small variables, in padded arrays.

    Attributes:
      unary: [n, labels] costs; infinite beyond the variable's own labels.
      ends: [pairs, 2] ascending variables of each pair of small variables.
      tables: [pairs, labels, labels] costs; arbitrary beyond the variables' own labels.
      left: [pairs] False for pairs with an eliminated variable.
      free: [n] True for remaining small variables with small neighbours alone.
    """

    def __init__(self, model: PairwiseModel) -> None:
        self._model, self._constant = model, model.constant
        self._sizes = np.array(model.sizes, dtype=np.int64)
        n, small = len(self._sizes), (self._sizes > 1) & (self._sizes <= MOST_LABELS)
        self._is_small = small
        single, pairs = model.terms
        self.unary: Floats = np.full((n, MOST_LABELS), np.inf)
        at, places = cells(np.where(small, self._sizes, 0))
        self.unary[at, places] = single.entries[single.starts[at] + places]
        inside: Bools = np.all(small[pairs.ends], axis=1)
        within, self._outside = pairs.part(inside), pairs.part(~inside)
        self.free: Bools = small.copy()
        self.free[self._outside.ends] = False
        self.ends = within.ends.copy()
        self.tables: Floats = np.zeros((len(self.ends), MOST_LABELS, MOST_LABELS))
        rows, columns = self._sizes[self.ends].T
        numbers, places = cells(rows * columns)
        width = columns[numbers]
        self.tables[numbers, places // width, places % width] = within.entries
        self.left: Bools = np.ones(len(self.ends), dtype=np.bool_)
        self._eliminated: Bools = np.zeros(n, dtype=np.bool_)
        # Neighbours are told apart by fixed random ranks: a third of a chain comes at once.
        self._rank = np.random.default_rng(0).permutation(n)

    def independent(self) -> Ints:
        """Free variables with at most two neighbours, none of them adjacent."""
        ends = self.ends[self.left]
        degrees = np.bincount(ends.ravel(), minlength=len(self._sizes))
        chosen = self.free & (degrees <= 2)
        both = ends[chosen[ends].all(axis=1)]
        chosen[both[np.arange(len(both)), self._rank[both].argmin(axis=1)]] = False
        return np.flatnonzero(chosen)

    def eliminate(self, chosen: Ints) -> list[_Batch]:
        """Eliminates independent variables."""
        is_chosen = np.zeros(len(self._sizes), dtype=np.bool_)
        is_chosen[chosen] = True
        self.free[chosen], self._eliminated[chosen] = False, True
        pairs = np.flatnonzero(self.left & is_chosen[self.ends].any(axis=1))
        first = is_chosen[self.ends[pairs, 0]]
        own: Ints = np.where(first, self.ends[pairs, 0], self.ends[pairs, 1])
        order = np.argsort(own, kind="stable")
        pairs, own, first = pairs[order], own[order], first[order]
        self.left[pairs] = False
        start, stop = np.searchsorted(own, chosen), np.searchsorted(own, chosen, side="right")
        batches = []
        for degree in range(3):
            some = stop - start == degree
            at = start[some, None] + np.arange(degree)  # [k, degree] of `pairs`
            scopes: Ints = np.where(first[at], self.ends[pairs[at], 1], self.ends[pairs[at], 0])
            few = (self._sizes[chosen[some]] <= FEW_LABELS) & np.all(
                self._sizes[scopes] <= FEW_LABELS, axis=1
            )
            for which, width in ((few, FEW_LABELS), (~few, MOST_LABELS)):
                if which.any():
                    picked = pairs[at[which]]
                    batch = self._batch(
                        chosen[some][which], scopes[which], picked, first[at[which]], width
                    )
                    self._add(batch, picked)
                    batches.append(batch)
        return batches

    def _batch(
        self, variables: Ints, scopes: Ints, pairs: Ints, first: Bools, width: int
    ) -> _Batch:
        """Costs of variables and their neighbours.

        Args:
          pairs: [k, neighbours] pairs of each variable and its neighbours.
          first: [k, neighbours] True for pairs with the variable in first place.
          width: padded number of labels.
        """
        degree = scopes.shape[1]
        costs = self.unary[variables, :width].reshape(-1, width, *[1] * degree)
        for i in range(degree):
            table = self.tables[pairs[:, i], :width, :width]
            table = np.where(first[:, i, None, None], table, table.transpose(0, 2, 1))
            shape = [1] * degree
            shape[i] = width
            costs = costs + table.reshape(-1, width, *shape)
        return _Batch(variables, scopes, costs)

    def _add(self, batch: _Batch, pairs: Ints) -> None:
        """Adds the least costs of eliminated variables to the neighbours.

        Args:
          pairs: [k, neighbours] free places for pairs of neighbours.
        """
        least, degree, width = batch.costs.min(axis=1), batch.scopes.shape[1], batch.costs.shape[1]
        if degree == 0:
            self._constant += float(least.sum())
        elif degree == 1:
            neighbours, _, sums = _summed(batch.scopes[:, 0], least)
            self.unary[neighbours, :width] += sums
        else:
            crossed = batch.scopes[:, 0] > batch.scopes[:, 1]
            tables = np.where(crossed[:, None, None], least.transpose(0, 2, 1), least)
            numbers, members, sums = _summed(self._numbers(np.sort(batch.scopes, axis=1)), tables)
            at = self._places_of(numbers, pairs[members, 0])
            self.tables[at, :width, :width] += sums

    def _numbers(self, ends: Ints) -> Ints:
        """A number for each pair of variables."""
        found: Ints = ends[:, 0] * len(self._sizes) + ends[:, 1]
        return found

    def _places_of(self, numbers: Ints, free: Ints) -> Ints:
        """Places of pairs by number; pairs without a place get a free one, and zeros.

        Args:
          numbers: distinct, of `_numbers`.
          free: [pairs] a place for each.
        """
        left = np.flatnonzero(self.left)
        known = self._numbers(self.ends[left])
        _, old, at = np.intersect1d(numbers, known, assume_unique=True, return_indices=True)
        found, new = free.copy(), np.ones(len(numbers), dtype=np.bool_)
        found[old], new[old] = left[at], False
        added = found[new]
        self.tables[added], self.left[added] = 0.0, True
        self.ends[added] = np.stack(np.divmod(numbers[new], len(self._sizes)), axis=1)
        return found

    def rest(self) -> PairwiseModel:
        """Model of the variables left."""
        sizes: Ints = np.where(self._eliminated, 1, self._sizes)
        single, _ = self._model.terms
        variables, places = cells(sizes)
        costs = single.entries[single.starts[variables] + places]
        small = self._is_small[variables]
        costs[small] = self.unary[variables[small], places[small]]
        costs[self._eliminated[variables]] = 0.0
        left = np.flatnonzero(self.left)
        ends = self.ends[left]
        numbers, places = cells(sizes[ends].prod(axis=1))
        width = sizes[ends[:, 1]][numbers]
        entries = self.tables[left[numbers], places // width, places % width]
        terms = self._outside.joined(Terms(ends, entries, starts_of(sizes[ends].prod(axis=1))))
        pairs = PairTables(terms, sizes.tolist())
        return PairwiseModel(Ragged(costs, sizes), pairs, self._constant)


def _summed(keys: Ints, tables: Floats) -> tuple[Ints, Ints, Floats]:
    """Distinct keys, the place of one of each, and the sum of the tables of each."""
    order = np.argsort(keys, kind="stable")
    distinct, starts = np.unique(keys[order], return_index=True)
    return distinct, order[starts], np.add.reduceat(tables[order], starts, axis=0)
