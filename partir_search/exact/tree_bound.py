"""Lower bounds of a pairwise model's minimum by sequential tree-reweighted message passing.

A model is a sum of chains along an order of the variables; the sum of the chains' minima is at most
the minimum of the sum. A sweep passes messages along the order and back and averages the chains'
min-marginals at each variable; the bound never falls (TRW-S, Kolmogorov 2006). Each pass also
bounds the energy of all labellings with a given label of a variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from partir_search.exact.elimination import elimination_order
from partir_search.exact.pairwise import Floats, Ints, Pair, PairwiseModel

_Target = tuple[int, int, int, Floats]
"""A neighbour, its place among the sender's, the sender's among its own, and the pair's table."""


class TreeBound:
    """Lower bound by message passing.

    Attributes:
      value: lower bound of the energy of all labellings; -inf before the first sweep.
      label_bounds: [n] arrays [labels] of lower bounds for labellings with the label.
    """

    def __init__(
        self,
        model: PairwiseModel,
        order: Sequence[int] | None = None,
        messages: Mapping[Pair, Floats] | None = None,
    ) -> None:
        """Bound of -inf.

        Args:
          order: order of the variables; by default the greedy order of elimination.
          messages: first messages by sender and receiver, such as those of a similar model; zeros
            elsewhere. Bounds hold for any.
        """
        self.model = model
        self.order = list(order if order is not None else elimination_order(model).variables)
        self.value = -np.inf
        self.label_bounds = [np.full(size, -np.inf) for size in model.sizes]
        rank = {u: i for i, u in enumerate(self.order)}
        near = model.neighbours
        place = {(u, v): i for u, each in enumerate(near) for i, (v, _) in enumerate(each)}
        # [neighbours, labels] messages that a variable has received
        self._received = [
            np.zeros((len(each), size)) for each, size in zip(near, model.sizes, strict=True)
        ]
        for (u, v), message in (messages or {}).items():
            i = place.get((v, u))
            if i is not None and len(message) == model.sizes[v]:
                self._received[v][i] = message
        self._constant = model.constant  # and variables of one label, which have no neighbours
        self._free: list[int] = []  # variables with a choice, in order
        self._targets: tuple[list[list[_Target]], ...] = ([[] for _ in near], [[] for _ in near])
        self._weights = [1.0] * len(near)
        for u in self.order:
            if model.sizes[u] == 1 and not near[u]:
                self._constant += float(model.unary[u][0])
                continue
            self._free.append(u)
            for i, (v, table) in enumerate(near[u]):
                later = rank[v] > rank[u]
                self._targets[0 if later else 1][u].append((v, i, place[v, u], table))
            self._weights[u] = 1.0 / max(*(len(each[u]) for each in self._targets), 1)

    def sweep(self) -> float:
        """Passes messages along the order and back; returns the bound."""
        for targets, order in zip(self._targets, (self._free, self._free[::-1]), strict=True):
            self._pass(order, targets)
        return self.value

    def run(self, sweeps: int, *, least_gain: float = 1e-5) -> float:
        """Sweeps until a sweep raises the bound by less than `least_gain`, relative."""
        for _ in range(sweeps):
            before = self.value
            after = self.sweep()
            if after - before <= least_gain * abs(after):
                break
        return self.value

    def _pass(self, order: Sequence[int], targets: Sequence[Sequence[_Target]]) -> None:
        received, unary, bound, before = (
            self._received,
            self.model.unary,
            self._constant,
            self.value,
        )
        for u in order:
            own = received[u]
            costs = np.sum(own, axis=0)
            costs += unary[u]
            least = float(np.min(costs))
            costs -= least
            np.maximum(self.label_bounds[u], before + costs, out=self.label_bounds[u])
            bound += least
            costs *= self._weights[u]
            for v, i, j, table in targets[u]:
                message = np.min((costs - own[i])[:, None] + table, axis=0)
                low = float(np.min(message))
                bound += low
                np.subtract(message, low, out=received[v][j])
        self.value = max(before, float(bound))

    def messages(self, kept: Sequence[Ints]) -> dict[Pair, Floats]:
        """Messages by sender and receiver, for some labels of the first variables."""
        n = len(kept)
        return {
            (v, u): self._received[u][i][kept[u]]
            for u in range(n)
            for i, (v, _) in enumerate(self.model.neighbours[u])
            if v < n
        }

    def decode(self) -> Ints:
        """[n] labels of least cost under the messages, chosen variable by variable; approximate."""
        labels = np.full(len(self.order), -1, dtype=np.int64)
        for u in self.order:
            costs = self.model.unary[u].copy()
            for i, (v, table) in enumerate(self.model.neighbours[u]):
                costs += table[:, labels[v]] if labels[v] >= 0 else self._received[u][i]
            labels[u] = int(np.argmin(costs))
        return labels
