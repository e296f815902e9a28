"""Lower bounds of a pairwise model's minimum by sequential tree-reweighted message passing.

A model is a sum of chains along an order of the variables; the sum of the chains' minima is at most
the minimum of the sum. A sweep passes messages along the order and back and averages the chains'
min-marginals at each variable; the bound never falls (TRW-S, Kolmogorov 2006). Each pass also
bounds the energy of all labellings with a given label of a variable.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from partir_search.exact.arrays import Floats, Ints, Pair
from partir_search.exact.elimination import elimination_order
from partir_search.exact.message_levels import Level, Message, Sender
from partir_search.exact.pairwise import PairwiseModel


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
        near, sizes = model.neighbours, model.sizes
        # Labels of all variables side by side, and the messages that each variable has received.
        self._bounds, self._costs = (np.full(sum(sizes), -np.inf) for _ in range(2))
        self._shares = np.full(sum(sizes) + 1, np.inf)
        firsts = [0, *itertools.accumulate(sizes)]
        self.label_bounds = [self._bounds[i:j] for i, j in itertools.pairwise(firsts)]
        starts = [0, *itertools.accumulate(len(near[u]) * n for u, n in enumerate(sizes))]
        self._messages = np.zeros(starts[-1] + 1)
        self._received = [
            self._messages[starts[u] : starts[u + 1]].reshape(len(near[u]), n)
            for u, n in enumerate(sizes)
        ]
        place = {(u, v): i for u, each in enumerate(near) for i, (v, _) in enumerate(each)}
        for (u, v), message in (messages or {}).items():
            i = place.get((v, u))
            if i is not None and len(message) == sizes[v]:
                self._received[v][i] = message
        self._constant = model.constant  # and variables of one label, which have no neighbours
        free: list[int] = []  # variables with a choice, in order
        for u in self.order:
            if sizes[u] == 1 and not near[u]:
                self._constant += float(model.unary[u][0])
            else:
                free.append(u)
        rank = {u: i for i, u in enumerate(free)}
        receivers: list[tuple[list[int], list[int]]] = [([], []) for _ in near]  # earlier, later
        for u in free:
            for i, (v, _) in enumerate(near[u]):
                receivers[u][rank[v] > rank[u]].append(i)

        def sent(u: int, i: int) -> Message:
            v, table = near[u][i]
            to = starts[v] + place[v, u] * sizes[v]
            return Message(firsts[u], starts[u] + i * sizes[u], to, table)

        def sender(u: int, *, forward: bool) -> Sender:
            return Sender(
                firsts[u],
                sizes[u],
                starts[u],
                len(near[u]),
                model.unary[u],
                1.0 / max(*map(len, receivers[u]), 1),
                [sent(u, i) for i in receivers[u][forward]],
            )

        self._passes = [
            [
                Level([sender(u, forward=forward) for u in level], starts[-1], sum(sizes))
                for level in _levels(order, near)
            ]
            for forward, order in ((True, free), (False, free[::-1]))
        ]

    def sweep(self) -> float:
        """Passes messages along the order and back; returns the bound."""
        for levels in self._passes:
            bound, before = self._constant, self.value
            for level in levels:
                bound += level.send(self._messages, self._costs, self._shares)
            np.maximum(self._bounds, before + self._costs, out=self._bounds)
            self.value = max(before, float(bound))
        return self.value

    def run(self, sweeps: int, *, least_gain: float = 1e-5) -> float:
        """Sweeps until a sweep raises the bound by less than `least_gain`, relative."""
        for _ in range(sweeps):
            before = self.value
            after = self.sweep()
            if after - before <= least_gain * abs(after):
                break
        return self.value

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


def _levels(
    order: Sequence[int], near: Sequence[Sequence[tuple[int, Floats]]]
) -> Iterator[list[int]]:
    """Variables by level (`exact/message_levels.py`).

    Args:
      order: variables in the order of a pass.
      near: [n] neighbours of each variable, with tables.
    """
    level = dict.fromkeys(order, 0)
    known = set[int]()
    for u in order:
        level[u] = max((level[v] + 1 for v, _ in near[u] if v in known), default=0)
        known.add(u)
    by_level = sorted(order, key=level.__getitem__)
    for _, some in itertools.groupby(by_level, level.__getitem__):
        yield [*some]
