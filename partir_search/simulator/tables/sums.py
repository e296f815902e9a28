"""Sums of tables over few variables each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from partir_search.exact.pairwise import ModelBuilder
from partir_search.simulator.arrays import Floats, Ints

Scope = tuple[int, ...]
Term = tuple[Scope, Floats]


class Sum:
    """A function of labels: tables by scope, of which none has more than two variables.

    Attributes:
      tables: by ascending variables.
    """

    def __init__(self, terms: Sequence[Term] = ()) -> None:
        self.tables: dict[Scope, Floats] = {}
        for scope, table in terms:
            self.add(scope, table)

    def add(self, scope: Scope, table: Floats) -> None:
        """Adds a table with one axis per variable of the scope."""
        if len(scope) == 2 and scope[0] > scope[1]:
            scope, table = (scope[1], scope[0]), table.T
        known = self.tables.get(scope)
        self.tables[scope] = table if known is None else known + table

    @property
    def variables(self) -> set[int]:
        """Variables of all scopes."""
        return {x for scope in self.tables for x in scope}

    def restricted(self, kept: Sequence[Ints]) -> Sum:
        """The sum over subsets of the labels, by variable; without variables of one label."""
        if all(
            len(kept[x]) == n > 1
            for s, t in self.tables.items()
            for x, n in zip(s, t.shape, strict=True)
        ):
            return self
        terms = []
        for scope, table in self.tables.items():
            free = tuple(x for x in scope if len(kept[x]) > 1)
            shape = [len(kept[x]) for x in free]
            terms.append((free, sliced(table, scope, kept).reshape(shape)))
        return Sum(terms)

    def times(self, factor: float) -> Sum:
        """The sum times a factor."""
        return Sum([(scope, table * factor) for scope, table in self.tables.items()])

    def at(self, labels: Sequence[int]) -> float:
        """Value at a labelling."""
        return sum(float(t[tuple([labels[x] for x in scope])]) for scope, t in self.tables.items())

    def most(self) -> float:
        """Upper bound of the value: the sum of the tables' largest entries."""
        return sum(float(np.max(table)) for table in self.tables.values())

    def most_along(self) -> dict[int, Floats]:
        """By variable, an upper bound of the value per label."""
        largest = {scope: float(np.max(table)) for scope, table in self.tables.items()}
        total = sum(largest.values())
        found: dict[int, Floats] = {}
        for scope, table in self.tables.items():
            for i, x in enumerate(scope):
                own = table if len(scope) == 1 else table.max(axis=1 - i)
                before: Floats | float = found.get(x, total)
                found[x] = before + (own - largest[scope])
        return found

    def over(self, scope: Sequence[int], sizes: Sequence[int]) -> Floats:
        """Table of the sum, with one axis per variable.

        Args:
          scope: all variables of the sum, and others, in ascending order.
          sizes: [variables] numbers of labels.
        """
        total = np.zeros([sizes[x] for x in scope])
        for own, table in self.tables.items():
            shape = [sizes[x] if x in own else 1 for x in scope]
            total += np.reshape(table, shape)
        return total

    def along(self, variable: int, size: int, labels: Sequence[int]) -> Floats:
        """[size] values as one variable changes and all others have their labels."""
        total = np.zeros(size)
        for scope, table in self.tables.items():
            total += table[tuple(slice(None) if x == variable else labels[x] for x in scope)]
        return total

    def scaled(
        self, variable: int, factors: Floats, labels: Sequence[int] | None
    ) -> Iterator[Term]:
        """Terms of the sum times a factor per label of a variable.

        Args:
          labels: at which tables over two other variables are taken, exact there; None: terms are
            at most the product, whatever the labels.
        """
        for scope, table in self.tables.items():
            if variable in scope:
                shape = [-1 if x == variable else 1 for x in scope]
                yield scope, table * factors.reshape(shape)
            elif len(scope) < 2:
                yield (variable, *scope), np.multiply.outer(factors, table)
            else:
                if labels is not None:
                    low = high = table[:, labels[scope[1]]]
                else:
                    low, high = table.min(axis=1), table.max(axis=1)
                positive, negative = np.maximum(factors, 0.0), np.minimum(factors, 0.0)
                product = np.multiply.outer(positive, low) + np.multiply.outer(negative, high)
                yield (variable, scope[0]), product


def sliced(table: npt.NDArray[Any], scope: Scope, kept: Sequence[Ints]) -> npt.NDArray[Any]:
    """A table over subsets of the labels, by variable; leading axes stay."""
    sizes = table.shape[table.ndim - len(scope) :]
    if all(len(kept[x]) == n for x, n in zip(scope, sizes, strict=True)):
        return table
    rows: tuple[Any, ...] = np.ix_(*(kept[x] for x in scope))
    found: npt.NDArray[Any] = table[(..., *rows)]
    return found


def add_to(builder: ModelBuilder, terms: Mapping[Scope, Floats] | Sequence[Term]) -> None:
    """Adds terms to a pairwise model."""
    items = terms.items() if isinstance(terms, Mapping) else terms
    for scope, table in items:
        builder.add(scope, table)
