"""Lower bounds of a pairwise model's minimum by sequential tree-reweighted message passing.

A model is a sum of chains along an order of the variables; the sum of the chains' minima is at most
the minimum of the sum. A sweep passes messages along the order and back and averages the chains'
min-marginals at each variable; the bound never falls (TRW-S, Kolmogorov 2006). Each pass also
bounds the energy of all labellings with a given label of a variable.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partir_search.exact.elimination import elimination_order
from partir_search.exact.pairwise import Floats, Ints, Pair, PairwiseModel


class TreeBound:
    """Lower bound by message passing.

    Attributes:
      value: lower bound of the energy of all labellings; -inf before the first sweep.
      label_bounds: [n] arrays [labels] of lower bounds for labellings with the label.
    """

    def __init__(self, model: PairwiseModel, order: Sequence[int] | None = None) -> None:
        """Bound of -inf, with messages of zeros.

        Args:
          order: order of the variables; by default the greedy order of elimination.
        """
        self.model = model
        self.order = list(order if order is not None else elimination_order(model).variables)
        self.value = -np.inf
        self.label_bounds = [np.full(size, -np.inf) for size in model.sizes]
        rank = {u: i for i, u in enumerate(self.order)}
        self._messages: dict[Pair, Floats] = {}  # by (from, to)
        self._directions: tuple[list[list[tuple[int, Floats]]], ...] = ([], [])
        self._weights: list[float] = []
        for u, near in enumerate(model.neighbours):
            for v, _ in near:
                self._messages[v, u] = np.zeros(model.sizes[u])
            later = [(v, table) for v, table in near if rank[v] > rank[u]]
            earlier = [(v, table) for v, table in near if rank[v] < rank[u]]
            self._directions[0].append(later)
            self._directions[1].append(earlier)
            self._weights.append(1.0 / max(len(later), len(earlier), 1))

    def sweep(self) -> float:
        """Passes messages along the order and back; returns the bound."""
        for direction, order in enumerate((self.order, self.order[::-1])):
            self._pass(order, self._directions[direction])
        return self.value

    def run(self, sweeps: int, *, least_gain: float = 1e-5) -> float:
        """Sweeps until a sweep raises the bound by less than `least_gain`, relative."""
        for _ in range(sweeps):
            before = self.value
            after = self.sweep()
            if after - before <= least_gain * abs(after):
                break
        return self.value

    def _pass(self, order: Sequence[int], targets: Sequence[Sequence[tuple[int, Floats]]]) -> None:
        model, messages, bound = self.model, self._messages, self.model.constant
        before = self.value
        for u in order:
            costs = model.unary[u].copy()
            for v, _ in model.neighbours[u]:
                costs += messages[v, u]
            least = float(np.min(costs))
            np.maximum(self.label_bounds[u], before + (costs - least), out=self.label_bounds[u])
            bound += least
            share = self._weights[u] * (costs - least)
            for v, table in targets[u]:
                message = ((share - messages[v, u])[:, None] + table).min(axis=0)
                smallest = float(np.min(message))
                bound += smallest
                message -= smallest
                messages[u, v] = message
        self.value = max(before, bound)

    def decode(self) -> Ints:
        """[n] labels of least cost under the messages, chosen variable by variable; approximate."""
        labels = np.full(len(self.order), -1, dtype=np.int64)
        for u in self.order:
            costs = self.model.unary[u].copy()
            for v, table in self.model.neighbours[u]:
                costs += table[:, labels[v]] if labels[v] >= 0 else self._messages[v, u]
            labels[u] = int(np.argmin(costs))
        return labels
