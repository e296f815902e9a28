"""The moves of a program as arrays: all uses at a labelling, and near one, without a loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from partir_search.exact.ragged import lengths_of, starts_of
from partir_search.exact.terms import ALONE, Subset
from partir_search.simulator.arrays import Bools, Floats, Ints
from partir_search.simulator.tables.price_arrays import PriceArrays
from partir_search.simulator.tables.prices import Columns, Pricer
from partir_search.simulator.tables.uses import Use


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class UseArrays:
    """All uses.

    Attributes:
      ends: [uses, 2] ascending variables of each use's table, or one and `ALONE`.
      items: numbers of redistributions, of all tables.
      starts: [uses] first place of each table in `items`; uses may share a table.
      strides: [uses, 2] of `items` along each variable.
      kinds: [uses] numbers of the kinds of values.
      prices: by kind.
      reduces / times: [uses] runs in a step of reductions, and of all further steps.
      settles / argument / group: [uses] as of `Use`.
    """

    ends: Ints
    items: Ints
    starts: Ints
    strides: Ints
    kinds: Ints
    prices: PriceArrays
    reduces: Floats
    times: Floats
    settles: Bools
    argument: Bools
    group: Ints

    @classmethod
    def of(cls, uses: Sequence[Use], pricer: Pricer) -> UseArrays:
        """Arrays of uses, with the prices of a pricer."""
        tables = [use.table for use in uses]
        items = {id(table.items): table.items.ravel() for table in tables}
        kinds = {id(table.prices): table.prices for table in tables}
        begins = dict(zip(items, starts_of(lengths_of([*items.values()])).tolist(), strict=False))
        number = {kind: k for k, kind in enumerate(kinds)}
        ends, strides = np.full((len(uses), 2), ALONE), np.zeros((len(uses), 2), dtype=np.int64)
        for i, table in enumerate(tables):
            steps = [*table.items.shape[1:], 1]  # of one row, and of one column
            each = sorted(zip(table.scope, steps, strict=True))
            ends[i, : len(each)] = [x for x, _ in each]
            strides[i, : len(each)] = [step for _, step in each]
        return cls(
            ends,
            np.concatenate([np.zeros(0, dtype=np.int64), *items.values()]),
            np.array([begins[id(table.items)] for table in tables], dtype=np.int64),
            strides,
            np.array([number[id(table.prices)] for table in tables], dtype=np.int64),
            PriceArrays(pricer, list(kinds.values())),
            np.array([table.reduces for table in tables], dtype=np.float64),
            np.array([table.times for table in tables], dtype=np.float64),
            np.array([table.settles for table in tables], dtype=np.bool_),
            np.array([use.argument for use in uses], dtype=np.bool_),
            np.array([use.group for use in uses], dtype=np.int64),
        )

    def at(self, labels: Ints) -> Columns:
        """[uses] prices at a labelling."""
        places = (np.append(labels, 0)[self.ends] * self.strides).sum(axis=1)
        return self.prices.of(self.kinds, self.items[self.starts + places])

    def near(self, some: Subset) -> tuple[Ints, Columns]:
        """Entries of all tables at subsets of the labels.

        Returns:
          Number of the use of each entry, and the prices of all entries.
        """
        owners, places = some.picks(self.ends, self.strides)
        items = self.items[self.starts[owners] + places]
        return owners, self.prices.of(self.kinds[owners], items)
