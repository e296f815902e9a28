"""Prices of many kinds of values, read together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partir_search.exact.ragged import lengths_of, starts_of
from partir_search.simulator.arrays import Ints
from partir_search.simulator.tables.prices import NO_PRICES, Columns, Pricer, Prices


class PriceArrays:
    """Prices of redistributions by number of the kind of value."""

    def __init__(self, pricer: Pricer, kinds: Sequence[Prices]) -> None:
        """Prices of `kinds`, all of the pricer."""
        self._steps, self._kinds = pricer.steps, kinds
        self._windows = np.array([kind.windows for kind in kinds], dtype=np.bool_)
        self._parts = [NO_PRICES] * len(kinds)
        self._starts = self._lengths = np.zeros(len(kinds), dtype=np.int64)
        self._all: Columns | None = None

    def of(self, kinds: Ints, items: Ints) -> Columns:
        """Prices of redistributions.

        Args:
          kinds: [n] numbers of kinds.
          items: [n] numbers of redistributions.
        """
        places = self._steps.places(items)
        rows = np.where(self._windows[kinds], places, self._steps.row_of[places])
        found = self._extended(kinds, items, rows)
        return found.picked(self._starts[kinds] + rows, self._steps.copies[places])

    def _extended(self, kinds: Ints, items: Ints, rows: Ints) -> Columns:
        """Prices of all kinds, with those of steps that no earlier call met.

        Args:
          rows: [n] numbers of the redistributions among the prices of their kind.
        """
        new = np.unique(kinds[rows >= self._lengths[kinds]])
        for k in (*new.tolist(), *np.flatnonzero(self._windows).tolist()):
            found = self._kinds[k].every(items[kinds == k])
            if found is not self._parts[k]:
                self._parts[k], self._all = found, None
        if self._all is None:
            self._lengths = lengths_of([part.reduced for part in self._parts])
            self._starts, self._all = starts_of(self._lengths)[:-1], _joined(self._parts)
        return self._all


def _joined(parts: Sequence[Columns]) -> Columns:
    """Prices one after another."""
    every = (NO_PRICES, *parts)
    most = max(len(part.gathers) for part in every)
    gathers = [np.pad(part.gathers, ((0, most - len(part.gathers)), (0, 0))) for part in every]
    return Columns(
        np.concatenate([part.reduced for part in every]),
        np.concatenate([part.moved for part in every]),
        np.concatenate(gathers, axis=1),
        np.concatenate([part.at_once for part in every]),
        np.concatenate([part.copied for part in every]),
        NO_PRICES.copies,
    )
