"""Minimisation of a pairwise model within limits of further pairwise models.

Limits get prices, so that elimination stays exact. The prices rise to the maximum of the dual by
cutting planes: each labelling found is a point of the linear program of `multipliers.py`. The best
labelling within the limits may lie between labellings that are optimal at some prices: variables in
which two of these differ form groups without pairs across, and each group is chosen by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from partir_search.exact.arrays import Floats, Ints
from partir_search.exact.elimination import minimum_within
from partir_search.exact.multipliers import Multipliers, best_multipliers
from partir_search.exact.pairwise import Labelling, PairwiseModel, lift_labelling
from partir_search.exact.repair import Changes, changed_singly
from partir_search.exact.terms import Subset

MAX_POINTS = 10  # labellings found by elimination for one set of limits
GAP = 1e-5  # of the dual, relative to the cost, at which cutting planes end
GROWTH = 10.0  # most that prices rise at once while no known point is within the limits
HIGHEST = 1e3  # price of a unit of relative excess, relative to the cost of the first labelling


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class _Limit:
    """A limit of a usage.

    Attributes:
      usage: of the labels of the block.
      most: the limit.
    """

    usage: PairwiseModel
    most: float


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Within:
    """Labelling within limits.

    Attributes:
      cost: energy of the model of costs.
      usages: [limits] energies of the usages.
    """

    cost: float
    labels: Ints
    usages: Sequence[float]


class LimitedBlock:
    """Labellings that differ from one in a block of labels, and keep limits at little cost.

    Attributes:
      prices: [limits] cost per unit of relative excess.
    """

    def __init__(
        self, model: PairwiseModel, labels: Ints, kept: Sequence[Ints], max_entries: int
    ) -> None:
        """Without limits.

        Args:
          model: costs of the labels of the block.
          labels: [variables] of the first labelling.
          kept: [variables] labels of the block.
          max_entries: limit of a table of exact elimination.
        """
        self._kept, self._model, self._max_entries = kept, model, max_entries
        start = Subset.of(kept).positions(labels)
        self._limits: list[_Limit] = []
        self._points = [start]
        self._known = {start.tobytes()}
        self._start = Labelling(self._model.energy(start), start)
        self.prices = np.zeros(0)

    def limit(self, usage: PairwiseModel, most: float, price: float) -> None:
        """Adds a limit.

        Args:
          usage: model over the same variables as the costs, and all labels.
          most: limit of the usage, positive.
          price: first price of the limit.
        """
        self._limits.append(_Limit(usage.restricted(self._kept), most))
        self.prices = np.append(self.prices, price)

    def tighten(self, number: int, by: float) -> None:
        """Lowers a limit."""
        limit = self._limits[number]
        self._limits[number] = dataclasses.replace(limit, most=limit.most - by)

    def cheapest_within(self) -> Within | None:
        """The cheapest known labelling that keeps all limits; None if no known labelling does."""
        costs, excesses = self._figures()
        costs[np.any(excesses > 0.0, axis=1)] = np.inf
        k = int(np.argmin(costs))
        if not np.isfinite(costs[k]):
            return None
        labels = lift_labelling(Labelling(0.0, self._points[k]), self._kept).labels
        usages = [limit.usage.energy(self._points[k]) for limit in self._limits]
        return Within(float(costs[k]), labels, usages)

    def solve(self, prices: Floats | None = None) -> list[Ints]:
        """New labellings, all labels: at prices up to the dual's maximum, and between these.

        Args:
          prices: first prices to try; without, those of the points known.
        """
        before = len(self._points)
        if prices is not None:
            self.prices = prices
            self._add(self._cheapest(prices).labels)
        for _ in range(MAX_POINTS):
            master = self._master()
            self.prices = master.prices
            found = self._cheapest(master.prices)
            if found.energy >= master.value - GAP * abs(self._start.energy):
                break
            if not self._add(found.labels):
                break
        self._add_between(self._master())
        fresh = self._points[before:]
        return [lift_labelling(Labelling(0.0, x), self._kept).labels for x in fresh]

    def _add(self, labels: Ints) -> bool:
        if labels.tobytes() in self._known:
            return False
        self._known.add(labels.tobytes())
        self._points.append(labels)
        return True

    def _figures(self) -> tuple[Floats, Floats]:
        points = np.array(self._points)
        excesses = np.empty((len(points), len(self._limits)))
        for i, limit in enumerate(self._limits):
            excesses[:, i] = limit.usage.energies(points) / limit.most - 1.0
        return self._model.energies(points), excesses

    def _master(self) -> Multipliers:
        costs, excesses = self._figures()
        cost = abs(self._start.energy)
        highest = GROWTH * max(float(np.max(self.prices, initial=0.0)), cost)
        return best_multipliers(costs, excesses, min(highest, HIGHEST * cost))

    def _cheapest(self, prices: Floats) -> Labelling:
        """Labelling of least cost with the limits at prices; the energy is the Lagrangian."""
        unary = list(self._model.unary)
        pairs = dict(self._model.pairs)
        constant = self._model.constant
        for limit, price in zip(self._limits, prices.tolist(), strict=True):
            if not price:
                continue
            factor, usage = price / limit.most, limit.usage
            constant += factor * usage.constant - price
            for u, costs in enumerate(usage.unary):
                if costs.any():
                    unary[u] = unary[u] + factor * costs
            for pair, table in usage.pairs.items():
                known = pairs.get(pair)
                pairs[pair] = factor * table if known is None else known + factor * table
        model = PairwiseModel(unary, pairs, constant)
        start = Labelling(model.energy(self._start.labels), self._start.labels)
        found = minimum_within(model, start, self._max_entries)
        return found if found.energy < start.energy - 1e-12 * abs(start.energy) else start

    def _add_between(self, master: Multipliers) -> None:
        """Adds labellings between mixed points, and near each, with less excess."""
        _, excesses = self._figures()
        usages = [limit.usage for limit in self._limits]
        most = np.array([limit.most for limit in self._limits])
        over = [k for k in master.mixed.tolist() if np.any(excesses[k] > 0.0)]
        for low in over:
            for high in master.mixed.tolist():
                if low != high:
                    changes = Changes(self._model, self._points[low], self._points[high])
                    self._add(changes.within(usages, most))
        for low in over:
            self._add(changed_singly(self._model, usages, most, self._points[low]))
