"""Exact minimum of a pairwise model by variable elimination.

Eliminating a variable replaces all tables over the variable by one table over the neighbours
(Bertele and Brioschi 1972). The order is greedy: the variable with the smallest table comes next.
Time and memory are linear in the entries of all tables.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import math
from collections.abc import Sequence, Set

import numpy as np

from partir_search.exact.pairwise import (
    Floats,
    Ints,
    Labelling,
    PairwiseModel,
    adjacency,
    lift_labelling,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """An order of elimination.

    Attributes:
      variables: [n] variables in order.
      scopes: [n] neighbours of each variable at its elimination.
      largest / entries: number of entries of the largest table, and of all tables.
    """

    variables: Sequence[int]
    scopes: Sequence[Set[int]]
    largest: int
    entries: int

    @property
    def width(self) -> int:
        """Largest number of neighbours at an elimination (the induced width)."""
        return max(map(len, self.scopes), default=0)


def elimination_order(model: PairwiseModel) -> Order:
    """Greedy order: the variable with the smallest table comes next."""
    return _greedy_order(model.sizes, adjacency(model))


def _greedy_order(sizes: Sequence[int], near: dict[int, set[int]]) -> Order:
    """Greedy order of variables with `sizes` labels; `near` holds neighbours and is emptied."""

    def entries(u: int) -> int:
        return sizes[u] * math.prod(map(sizes.__getitem__, near.get(u, ())))

    current = [entries(u) for u in range(len(sizes))]
    heap = [(size, u) for u, size in enumerate(current)]
    heapq.heapify(heap)
    variables: list[int] = []
    scopes: list[Set[int]] = []
    done = [False] * len(sizes)
    largest = total = 0
    while heap:
        size, u = heapq.heappop(heap)
        if done[u] or size != current[u]:
            continue  # outdated: pushed before a neighbour was eliminated
        done[u] = True
        scope = near.pop(u, set())
        variables.append(u)
        scopes.append(scope)
        largest, total = max(largest, size), total + size
        for v in scope:
            near[v] |= scope
            near[v] -= {u, v}
        for v in scope:
            current[v] = entries(v)
            heapq.heappush(heap, (current[v], v))
    return Order(variables, scopes, largest, total)


def eliminate(model: PairwiseModel, order: Order | None = None) -> Labelling:
    """Labelling of least energy.

    Args:
      order: order of elimination, greedy by default. The largest array has `order.largest` numbers.
    """
    order = order or elimination_order(model)
    at = {u: i for i, u in enumerate(order.variables)}
    tables: list[list[tuple[tuple[int, ...], Floats]]] = [[] for _ in order.variables]
    for (u, v), table in model.pairs.items():
        first, pair = (u, ((u, v), table)) if at[u] < at[v] else (v, ((v, u), table.T))
        tables[at[first]].append(pair)
    energy = model.constant
    for i, u in enumerate(order.variables):
        scope = sorted(order.scopes[i], key=at.__getitem__)
        if not scope:
            total = model.unary[u] + sum(table for _, table in tables[i])
            energy += float(np.min(total))
            continue
        place = {v: axis for axis, v in enumerate((u, *scope))}
        total = np.empty([model.sizes[v] for v in place])
        total[...] = model.unary[u].reshape(-1, *[1] * len(scope))
        for own, table in tables[i]:
            shape = [1] * len(place)
            for v in own:
                shape[place[v]] = model.sizes[v]
            total += table.reshape(shape)  # a table's variables are in order of elimination
        least = np.min(total, axis=0)
        tables[at[scope[0]]].append((tuple(scope), least))
    labels = np.zeros(len(model.sizes), dtype=np.int64)
    for i, u in reversed([*enumerate(order.variables)]):
        costs = model.unary[u].copy()
        for own, table in tables[i]:  # its own label comes first
            costs += table[(slice(None), *(labels[v] for v in own[1:]))]
        labels[u] = int(np.argmin(costs))
    return Labelling(energy, labels)


def least_completion(model: PairwiseModel, labels: Ints) -> float:
    """Least energy of all labellings that begin with `labels`."""
    free = model.all_labels()[len(labels) :]
    return eliminate(model.restricted([*np.reshape(labels, (-1, 1)), *free])).energy


def minimum_within(
    model: PairwiseModel, start: Labelling, max_entries: int, order: Order | None = None
) -> Labelling:
    """Labelling of least energy under a limit of memory; never worse than `start`.

    Variables are fixed at their labels in `start` until no table has more than `max_entries`
    entries. The result is exact over the remaining variables.

    Args:
      order: order of elimination, greedy by default.
    """
    order = order or elimination_order(model)
    if order.largest <= max_entries:
        return eliminate(model, order)
    sizes, kept = list(model.sizes), model.all_labels()
    while order.largest > max_entries:
        for u in _contributors(sizes, order, max_entries):
            sizes[u], kept[u] = 1, np.array([start.labels[u]], dtype=np.int64)
        near: dict[int, set[int]] = collections.defaultdict(set)
        for u, v in model.pairs:
            if sizes[u] > 1 and sizes[v] > 1:
                near[u].add(v)
                near[v].add(u)
        order = _greedy_order(sizes, near)
    return lift_labelling(eliminate(model.restricted(kept), order), kept)


def _contributors(sizes: Sequence[int], order: Order, max_entries: int) -> Sequence[int]:
    """Variables to fix: those with the largest shares in tables beyond the limit, on a log scale.

    As many as halve the excess under `order`: another order of the remaining variables may then
    need fewer to be fixed.
    """
    tables: list[tuple[set[int], float]] = []
    for u, scope in zip(order.variables, order.scopes, strict=True):
        entries = sizes[u] * math.prod(map(sizes.__getitem__, scope))
        if entries > max_entries:
            tables.append(
                ({v for v in (u, *scope) if sizes[v] > 1}, math.log(entries / max_entries))
            )
    enough, fixed = sum(excess for _, excess in tables) / 2, list[int]()
    while tables and sum(excess for _, excess in tables) > enough:
        weight: dict[int, float] = collections.defaultdict(float)
        for variables, excess in tables:
            for v in variables:
                weight[v] += excess
        chosen = max(weight, key=lambda v: (weight[v], sizes[v], -v))
        fixed.append(chosen)
        gain = math.log(sizes[chosen])
        changed = [(v - {chosen}, e - gain if chosen in v else e) for v, e in tables]
        tables = [(v, e) for v, e in changed if e > 0.0]
    return fixed
