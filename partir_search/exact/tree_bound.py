"""Lower bounds of a pairwise model's minimum by sequential tree-reweighted message passing.

A model is a sum of chains along an order of the variables; the sum of the chains' minima is at most
the minimum of the sum. A sweep passes messages along the order and back and averages the chains'
min-marginals at each variable; the bound never falls (TRW-S, Kolmogorov 2006). Each pass also
bounds the energy of all labellings with a given label of a variable.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from partir_search.exact.elimination import elimination_order
from partir_search.exact.pairwise import Floats, Ints, Pair, PairwiseModel

TOGETHER = 1 << 15  # entries of tables whose messages are computed at once, at most


class _Sender:
    """Messages from one variable to later or to earlier neighbours, computed at once."""

    __slots__ = ("_receiver", "_rows", "_starts", "_table", "_to")

    def __init__(self, rows: Sequence[int], tables: Sequence[Floats], to: Sequence[int]) -> None:
        """Messages over tables [labels of the sender, labels of a receiver].

        Args:
          rows: [receivers] places among the sender's neighbours.
          to: [receivers] places of the messages' first entries among all messages.
        """
        widths = [table.shape[1] for table in tables]
        self._table = np.concatenate(tables, axis=1)  # side by side: a column per message entry
        self._rows = np.array(rows, dtype=np.int64)
        self._receiver = np.repeat(np.arange(len(rows)), widths)
        self._starts = np.array([0, *itertools.accumulate(widths[:-1])], dtype=np.int64)
        shift = np.array(to, dtype=np.int64) - self._starts
        self._to = np.arange(len(self._receiver)) + shift[self._receiver]

    def send(self, costs: Floats, received: Floats, messages: Floats) -> list[float]:
        """Writes the messages; returns the least entry of each before it was subtracted.

        Args:
          costs: [labels] the sender's share of its costs.
          received: [neighbours, labels] messages that the sender has received.
          messages: all messages.
        """
        if len(self._rows) == 1:
            rest = (costs - received[self._rows[0]])[:, None]
            found = (rest + self._table).min(axis=0)
            least = found.min()
            messages[self._to] = found - least
            return [float(least)]
        shares = costs - received[self._rows]
        found = (shares.T[:, self._receiver] + self._table).min(axis=0)
        lows = np.minimum.reduceat(found, self._starts)
        messages[self._to] = found - lows[self._receiver]
        each: list[float] = lows.tolist()
        return each


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
        ends = [0, *itertools.accumulate(sizes)]
        self._costs_of = [self._costs[i:j] for i, j in itertools.pairwise(ends)]
        self.label_bounds = [self._bounds[i:j] for i, j in itertools.pairwise(ends)]
        starts = [0, *itertools.accumulate(len(near[u]) * n for u, n in enumerate(sizes))]
        self._messages = np.zeros(starts[-1])
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
        self._free: list[int] = []  # variables with a choice, in order
        self._weights = [1.0] * len(near)
        self._senders: tuple[list[list[_Sender]], ...] = ([[] for _ in near], [[] for _ in near])
        rank = {u: i for i, u in enumerate(self.order)}
        for u in self.order:
            if sizes[u] == 1 and not near[u]:
                self._constant += float(model.unary[u][0])
                continue
            self._free.append(u)
            receivers: tuple[list[int], list[int]] = ([], [])  # later, earlier
            for i, (v, _) in enumerate(near[u]):
                receivers[rank[v] < rank[u]].append(i)
            for rows, senders in zip(receivers, self._senders, strict=True):
                for some in _together(rows, [near[u][i][1].size for i in rows]):
                    targets = [near[u][i] for i in some]
                    to = [starts[v] + place[v, u] * sizes[v] for v, _ in targets]
                    senders[u].append(_Sender(some, [table for _, table in targets], to))
            self._weights[u] = 1.0 / max(*map(len, receivers), 1)

    def sweep(self) -> float:
        """Passes messages along the order and back; returns the bound."""
        for senders, order in zip(self._senders, (self._free, self._free[::-1]), strict=True):
            self._pass(order, senders)
        return self.value

    def run(self, sweeps: int, *, least_gain: float = 1e-5) -> float:
        """Sweeps until a sweep raises the bound by less than `least_gain`, relative."""
        for _ in range(sweeps):
            before = self.value
            after = self.sweep()
            if after - before <= least_gain * abs(after):
                break
        return self.value

    def _pass(self, order: Sequence[int], senders: Sequence[Sequence[_Sender]]) -> None:
        unary, bound, before = self.model.unary, self._constant, self.value
        for u in order:
            own = self._received[u]
            costs = np.add.reduce(own, axis=0, out=self._costs_of[u])
            costs += unary[u]
            least = float(costs.min())
            costs -= least
            bound += least
            if senders[u]:
                share = costs * self._weights[u]
                for sender in senders[u]:
                    for low in sender.send(share, own, self._messages):
                        bound += low
        np.maximum(self._bounds, before + self._costs, out=self._bounds)
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


def _together(rows: Sequence[int], entries: Sequence[int]) -> list[list[int]]:
    """Rows in groups of at most `TOGETHER` entries, or of one row."""
    found: list[list[int]] = []
    total = 0
    for row, more in zip(rows, entries, strict=True):
        total += more
        if not found or total > TOGETHER:
            found.append([])
            total = more
        found[-1].append(row)
    return found
