"""Labellings within limits from one that exceeds them, by changes of least cost per excess saved.

A change is of one variable, or of a group of variables in which two labellings differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partir_search.exact.arrays import Floats, Ints
from partir_search.exact.pairwise import PairwiseModel

MAX_CHANGES = 40  # of single variables
DEAREST = 0.2  # of the cost of a labelling, for all changes of single variables


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
            left = np.flatnonzero(~chosen)
            chosen[left[np.argmin(each[left])]] = True
            excess = low - saved @ chosen
        for g in np.argsort(-costs, kind="stable").tolist():
            if chosen[g] and costs[g] > 0.0 and np.all(excess + saved[:, g] <= 0.0):
                chosen[g] = False
                excess = low - saved @ chosen
        changed = np.isin(self._group, np.flatnonzero(chosen))
        found: Ints = np.where(changed, self._high, self._low)
        return found


class _Conditional:
    """Energies of a model by the label of each variable, with the other variables fixed."""

    def __init__(self, model: PairwiseModel, labels: Ints, offsets: Ints) -> None:
        """[all labels] energies, variable after variable from `offsets` on."""
        self._model, self._offsets = model, offsets
        self.energies = np.concatenate(model.unary)
        for (u, v), table in model.pairs.items():
            self._add(u, table[:, labels[v]])
            self._add(v, table[labels[u]])

    def _add(self, u: int, costs: Floats) -> None:
        first = self._offsets[u]
        self.energies[first : first + len(costs)] += costs

    def change(self, u: int, before: int, after: int) -> None:
        for v, table in self._model.neighbours[u]:
            self._add(v, table[after] - table[before])


def changed_singly(
    model: PairwiseModel, usages: Sequence[PairwiseModel], most: Floats, labels: Ints
) -> Ints:
    """Labelling with single variables changed until all usages are within their limits.

    The nearest found if changes become too dear, or none saves excess.
    """
    sizes = np.array(model.sizes)
    offsets: Ints = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)
    variable = np.repeat(np.arange(len(sizes)), sizes)
    labels = labels.copy()
    costs = _Conditional(model, labels, offsets)
    used = [_Conditional(usage, labels, offsets) for usage in usages]
    excess = np.array([u.energy(labels) for u in usages]) - most
    spent, budget = 0.0, DEAREST * abs(model.energy(labels))
    for _ in range(MAX_CHANGES):
        if np.all(excess <= 0.0):
            break
        now = offsets + labels
        dearer = costs.energies - costs.energies[now][variable]
        more = np.array([u.energies - u.energies[now][variable] for u in used])
        before = np.maximum(excess, 0.0)[:, None]
        saved = ((before - np.maximum(excess[:, None] + more, 0.0)) / most[:, None]).sum(axis=0)
        rates = np.where(saved > 0.0, np.maximum(dearer, 0.0) / np.maximum(saved, 1e-300), np.inf)
        best = int(np.argmin(rates))
        u, label = int(variable[best]), best - int(offsets[variable[best]])
        spent += float(dearer[best])
        if not np.isfinite(rates[best]) or spent > budget:
            break
        for each in (costs, *used):
            each.change(u, int(labels[u]), label)
        excess = excess + more[:, best]
        labels[u] = label
    return labels
