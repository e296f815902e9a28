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

from partir_search.exact.elimination import Order, elimination_order, minimum_within
from partir_search.exact.multipliers import Multipliers, best_multipliers
from partir_search.exact.pairwise import (
    Floats,
    Ints,
    Labelling,
    Pair,
    PairwiseModel,
    lift_labelling,
)

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

    def excess(self, labels: Ints) -> float:
        return self.usage.energy(labels) / self.most - 1.0


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
        self, model: PairwiseModel, labels: Ints, block: Sequence[Ints], max_entries: int
    ) -> None:
        """Without limits.

        Args:
          block: groups of labels by variable; labels change within the current groups.
          max_entries: limit of a table of exact elimination.
        """
        self._kept = [
            np.flatnonzero(group == group[x]) for group, x in zip(block, labels, strict=True)
        ]
        self._model, self._max_entries = model.restricted(self._kept), max_entries
        start = np.array([np.searchsorted(k, x) for k, x in zip(self._kept, labels, strict=True)])
        self._limits: list[_Limit] = []
        self._points = [start]
        self._known = {start.tobytes()}
        self._start = Labelling(self._model.energy(start), start)
        self._order: tuple[frozenset[Pair], Order] | None = None
        self.prices = np.zeros(0)

    def limit(self, usage: PairwiseModel, most: float, price: float) -> None:
        """Adds a limit.

        Args:
          usage: model over the same variables and labels as the costs.
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
        """Labelling of least cost of those found within all limits; None if there is none."""
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
        costs = np.array([self._model.energy(x) for x in self._points])
        excesses = [[limit.excess(x) for limit in self._limits] for x in self._points]
        return costs, np.array(excesses).reshape(len(costs), len(self._limits))

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
        key = frozenset(pairs)
        if self._order is None or self._order[0] != key:
            self._order = key, elimination_order(model)
        start = Labelling(model.energy(self._start.labels), self._start.labels)
        found = minimum_within(model, start, self._max_entries, self._order[1])
        return found if found.energy < start.energy - 1e-12 * abs(start.energy) else start

    def _add_between(self, master: Multipliers) -> None:
        """Adds labellings between each pair of mixed points of which one exceeds a limit."""
        _, excesses = self._figures()
        mixed = master.mixed.tolist()
        for low in mixed:
            for high in mixed:
                if (
                    low != high
                    and np.any(excesses[low] > 0.0)
                    and np.all(excesses[high] <= np.maximum(excesses[low], 0.0))
                ):
                    changes = Changes(self._model, self._points[low], self._points[high])
                    usages = [limit.usage for limit in self._limits]
                    most = np.array([limit.most for limit in self._limits])
                    self._add(changes.within(usages, most))


class Changes:
    """Groups of variables in which two labellings differ; no pair has variables of two groups."""

    def __init__(self, model: PairwiseModel, low: Ints, high: Ints) -> None:
        self._model, self._low, self._high = model, low, high
        self._group = np.full(len(low), -1, dtype=np.int64)
        differs = low != high
        count = 0
        for u in np.flatnonzero(differs).tolist():
            if self._group[u] >= 0:
                continue
            stack = [u]
            self._group[u] = count
            while stack:
                for v, _ in model.neighbours[stack.pop()]:
                    if differs[v] and self._group[v] < 0:
                        self._group[v] = count
                        stack.append(v)
            count += 1
        self.count = count

    def of(self, model: PairwiseModel) -> Floats:
        """[groups] change of a model's energy with one group changed from `low` to `high`."""
        found = np.zeros(self.count)
        low, high, group = self._low.tolist(), self._high.tolist(), self._group.tolist()
        for u, g in enumerate(group):
            if g >= 0:
                found[g] += model.unary[u][high[u]] - model.unary[u][low[u]]
        for (u, v), table in model.pairs.items():
            g, h = group[u], group[v]
            if g >= 0 and (h < 0 or h == g):
                to = high[v] if h == g else low[v]
                found[g] += table[high[u], to] - table[low[u], low[v]]
            elif h >= 0 and g < 0:
                found[h] += table[low[u], high[v]] - table[low[u], low[v]]
            elif g >= 0:  # a usage has a pair that the costs have not
                found[g] += table[high[u], low[v]] - table[low[u], low[v]]
                found[h] += table[low[u], high[v]] - table[low[u], low[v]]
        return found

    def within(self, usages: Sequence[PairwiseModel], most: Floats) -> Ints:
        """Labelling within limits, with groups changed in order of cost per excess saved.

        Groups that turn out not to be needed are changed back, the dearest first. The result is
        `high` if nothing less is within the limits.
        """
        costs = self.of(self._model)
        saved = np.array([-self.of(usage) / n for usage, n in zip(usages, most, strict=True)])
        low = np.array([u.energy(self._low) / n - 1.0 for u, n in zip(usages, most, strict=True)])
        excess, chosen = low.copy(), np.zeros(self.count, dtype=np.bool_)
        while np.any(excess > 0.0) and not chosen.all():
            useful = np.minimum(saved, np.maximum(excess, 0.0)[:, None]).sum(axis=0)
            each = np.where(useful > 0.0, costs / np.maximum(useful, 1e-300), np.inf)
            each[costs <= 0.0] = np.where(useful[costs <= 0.0] >= 0.0, -np.inf, np.inf)
            each[chosen] = np.nan
            g = int(np.nanargmin(each))
            chosen[g] = True
            excess = low - saved @ chosen
        for g in np.argsort(-costs, kind="stable").tolist():
            if chosen[g] and costs[g] > 0.0 and np.all(excess + saved[:, g] <= 0.0):
                chosen[g] = False
                excess = low - saved @ chosen
        changed = np.isin(self._group, np.flatnonzero(chosen))
        found: Ints = np.where(changed, self._high, self._low)
        return found
