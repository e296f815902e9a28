"""Pairwise models: a sum of one table per variable and one per pair of variables.

A labelling gives each variable one label. The energy of labels x is
`constant + sum_u unary[u][x_u] + sum_uv pairs[u, v][x_u, x_v]`. Tables are finite: a forbidden pair
costs a multiple of the minimum, not infinity, as messages are differences of costs.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from partir_search.exact.arrays import Floats, Ints, Pair
from partir_search.exact.ragged import Ragged, lengths_of
from partir_search.exact.terms import PairTables, Subset, Terms, summed


@dataclasses.dataclass(frozen=True, slots=True)
class Labelling:
    """Labels of a model's variables.

    Attributes:
      energy: cost of the labels.
      labels: [variables] index of each variable's label.
    """

    energy: float
    labels: Ints


@dataclasses.dataclass(frozen=True, eq=False)
class PairwiseModel:
    """Costs of labels of n variables.

    Attributes:
      unary: [n] arrays [labels] of costs.
      pairs: costs [labels of u, labels of v] by variables (u, v) with u < v.
      constant: cost of every labelling.
    """

    unary: Sequence[Floats]
    pairs: Mapping[Pair, Floats]
    constant: float = 0.0

    def __str__(self) -> str:
        free = sum(size > 1 for size in self.sizes)
        return (
            f"PairwiseModel: {len(self.unary)} variables, {free} of them free,"
            f" {sum(self.sizes)} labels, {len(self.pairs)} pairs"
        )

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """[n] numbers of labels."""
        return tuple(lengths_of(self.unary).tolist())

    @functools.cached_property
    def neighbours(self) -> Sequence[Sequence[tuple[int, Floats]]]:
        """[n] neighbours of each variable with the table [own labels, labels of the neighbour]."""
        found: list[list[tuple[int, Floats]]] = [[] for _ in self.unary]
        for (u, v), table in self.pairs.items():
            found[u].append((v, table))
            found[v].append((u, table.T))
        return found

    @functools.cached_property
    def terms(self) -> tuple[Terms, Terms]:
        """Costs of single variables, and of pairs, without the constant."""
        pairs = PairTables.of(self.pairs, self.sizes)
        return Terms.single(Ragged.of(self.unary)), pairs.terms

    @classmethod
    def of_terms(
        cls, sizes: Sequence[int], parts: Sequence[Terms], constant: float
    ) -> PairwiseModel:
        """Model of a sum of terms over variables with `sizes` labels."""
        return cls(*summed(sizes, parts), constant)

    def energies(self, labels: Ints) -> Floats:
        """[...] costs of labellings [..., n]."""
        single, pairs = self.terms
        return (
            self.constant + single.energies(labels, self.sizes) + pairs.energies(labels, self.sizes)
        )

    def energy(self, labels: Ints) -> float:
        """Cost of a labelling."""
        return float(self.energies(labels))

    def restricted(self, kept: Sequence[Ints]) -> PairwiseModel:
        """Model of a subset of the labels.

        Pairs with a variable of one label become unary costs.

        Args:
          kept: [n] arrays of label indices. Labels of the result are positions in these arrays.
        """
        some = Subset.of(kept)
        parts = [part.at_labels(some, self.sizes) for part in self.terms]
        return self.of_terms([*map(len, kept)], parts, self.constant)

    def plus(self, other: PairwiseModel, factor: float) -> PairwiseModel:
        """Sum with a multiple of a model over the same variables and labels."""
        builder = ModelBuilder(self.sizes)
        for model, weight in ((self, 1.0), (other, factor)):
            builder.constant += weight * model.constant
            for u, costs in enumerate(model.unary):
                builder.add((u,), weight * costs)
            for pair, table in model.pairs.items():
                builder.add(pair, weight * table)
        return builder.model()

    def all_labels(self) -> list[Ints]:
        """[n] indices of all labels of each variable."""
        return [np.arange(size, dtype=np.int64) for size in self.sizes]


class ModelBuilder:
    """Sum of tables that becomes a pairwise model.

    Attributes:
      unary / pairs / constant: tables so far, as in `PairwiseModel`.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        """Zeros over variables with `sizes` labels."""
        self.unary: list[Floats] = [np.zeros(size) for size in sizes]
        self.pairs: dict[Pair, Floats] = {}
        self.constant = 0.0

    @classmethod
    def of(cls, model: PairwiseModel) -> ModelBuilder:
        """A model's tables, to which more are added."""
        found = cls(())
        single, pairs = model.terms
        sizes = np.array(model.sizes, dtype=np.int64)
        found.unary = [*Ragged(single.entries.copy(), sizes)]
        copied = Terms(pairs.ends, pairs.entries.copy(), pairs.starts)
        found.pairs, found.constant = dict(PairTables(copied, model.sizes)), model.constant
        return found

    def new_variable(self, size: int) -> int:
        """Number of one more variable, with `size` labels at no cost."""
        self.unary.append(np.zeros(size))
        return len(self.unary) - 1

    def add(self, variables: Sequence[int], table: Floats) -> None:
        """Adds a table over distinct variables, at most two, with one axis per variable."""
        if len(variables) == 2 and 1 in table.shape:  # of the other variable alone
            u, v = variables
            variables, table = ((v,), table[0]) if table.shape[0] == 1 else ((u,), table[:, 0])
        if not len(variables):
            self.constant += float(table)
        elif len(variables) == 1:
            self.unary[variables[0]] += table
        else:
            u, v = variables
            key, table = ((u, v), table) if u < v else ((v, u), table.T)
            known = self.pairs.get(key)
            if known is None:
                self.pairs[key] = np.array(table, dtype=np.float64)
            else:
                known += table

    def model(self) -> PairwiseModel:
        """Model of all tables added."""
        unary, sizes = Ragged.of(self.unary), [*map(len, self.unary)]
        return PairwiseModel(unary, PairTables.of(self.pairs, sizes), self.constant)


def lift_labelling(found: Labelling, kept: Sequence[Ints]) -> Labelling:
    """Converts a labelling of `model.restricted(kept)` to labels of `model`."""
    picked = [int(k[x]) for k, x in zip(kept, found.labels, strict=True)]
    return Labelling(found.energy, np.array(picked, dtype=np.int64))


def adjacency(model: PairwiseModel) -> dict[int, set[int]]:
    """Neighbours of each variable."""
    found: dict[int, set[int]] = collections.defaultdict(set)
    for u, v in model.pairs:
        found[u].add(v)
        found[v].add(u)
    return found
