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
from typing import Any

import numpy as np

from partir_search.exact.arrays import Floats, Ints
from partir_search.exact.pairwise import Labelling, PairwiseModel, adjacency, lift_labelling
from partir_search.exact.small_variables import eliminate_small

LARGE = 1 << 16  # entries of a sum that is made row by row
BLOCKED = 1 << 19  # entries of a sum that is made in blocks
BLOCK = 1 << 14  # entries of a block, which caches hold beside those of the arrays that are added

_Table = tuple[tuple[int, ...], Floats]
"""Variables and costs."""


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
    return _greedy_order(list(model.sizes), adjacency(model))[0]


def _greedy_order(
    sizes: list[int], near: dict[int, set[int]], max_entries: float = math.inf
) -> tuple[Order, list[int]]:
    """Greedy order of variables with `sizes` labels, and the variables fixed.

    Once the smallest table has more than `max_entries`, the variable with the largest share in
    the tables left is fixed: one label, no neighbours.

    Args:
      sizes: 1 for fixed variables afterwards.
      near: neighbours; emptied.
    """
    current = [
        size * math.prod([sizes[v] for v in near.get(u, ())]) for u, size in enumerate(sizes)
    ]
    # Variables of one label, which have no neighbours, come first.
    variables = [u for u, size in enumerate(current) if size == 1 and not near.get(u)]
    scopes: list[Set[int]] = [set[int]() for _ in variables]
    fixed: list[int] = []
    done = [False] * len(sizes)
    for u in variables:
        done[u] = True
    heap = [(size, u) for u, size in enumerate(current) if not done[u]]
    heapq.heapify(heap)
    largest, total = min(len(variables), 1), len(variables)

    def update(changed: Set[int]) -> None:
        for v in changed:
            current[v] = sizes[v] * math.prod([sizes[w] for w in near[v]])
            heapq.heappush(heap, (current[v], v))

    while heap:
        size, u = heapq.heappop(heap)
        if done[u] or size != current[u]:
            continue  # outdated: pushed before a neighbour was eliminated
        if size > max_entries:
            v = _largest_share(sizes, near, current, max_entries) if near.get(u) else u
            fixed.append(v)
            done[v], sizes[v] = True, 1
            scope = near.pop(v, set())
            for w in scope:
                near[w].discard(v)
            update(scope)
            if not done[u]:
                heapq.heappush(heap, (current[u], u))
            continue
        done[u] = True
        scope = near.pop(u, set())
        variables.append(u)
        scopes.append(scope)
        largest, total = max(largest, size), total + size
        for v in scope:
            near[v] |= scope
            near[v] -= {u, v}
        update(scope)
    if fixed:
        variables, scopes = [*variables, *fixed], [s - set(fixed) for s in scopes]
        scopes += [set[int]() for _ in fixed]
    return Order(variables, scopes, largest, total), fixed


def _largest_share(
    sizes: Sequence[int], near: dict[int, set[int]], current: Sequence[int], max_entries: float
) -> int:
    """Variable with the largest share in tables beyond a limit, on a log scale."""
    weight: dict[int, float] = collections.defaultdict(float)
    for u, scope in near.items():
        excess = math.log(current[u] / max_entries)
        for v in (u, *scope):
            weight[v] += excess
    return max(
        (v for v in weight if sizes[v] > 1),
        key=lambda v: (weight[v] * math.log(sizes[v]), sizes[v], -v),
    )


def eliminate(model: PairwiseModel, order: Order | None = None) -> Labelling:
    """Labelling of least energy.

    Args:
      order: order of elimination, greedy by default. The largest array has `order.largest` numbers.
    """
    order = order or elimination_order(model)
    at = {u: i for i, u in enumerate(order.variables)}
    tables: list[list[_Table]] = [[] for _ in order.variables]
    for (u, v), table in model.pairs.items():
        first, pair = (u, ((u, v), table)) if at[u] < at[v] else (v, ((v, u), table.T))
        tables[at[first]].append(pair)
    energy = model.constant
    for i, u in enumerate(order.variables):
        if model.sizes[u] == 1 and not tables[i] and not order.scopes[i]:
            energy += float(model.unary[u][0])
            continue
        if not order.scopes[i]:
            total = model.unary[u]
            if tables[i]:
                total = total + sum(table for _, table in tables[i])
            energy += float(np.min(total))
            continue
        scope = sorted(order.scopes[i], key=at.__getitem__)
        tables[at[scope[0]]].append((tuple(scope), _least(model, u, scope, tables[i])))
    labels = [0] * len(model.sizes)
    for i, u in reversed([*enumerate(order.variables)]):
        if model.sizes[u] == 1:
            continue
        costs = model.unary[u].copy()
        for own, table in tables[i]:  # its own label comes first
            at_labels: tuple[Any, ...] = (slice(None), *[labels[v] for v in own[1:]])
            costs += table[at_labels]
        labels[u] = int(np.argmin(costs))
    return Labelling(energy, np.array(labels, dtype=np.int64))


def _least(model: PairwiseModel, u: int, scope: Sequence[int], tables: Sequence[_Table]) -> Floats:
    """Least cost over the labels of a variable, by labels of the variables of `scope`.

    Sums have axes of the variables met so far: few sums are as large as the result.

    Args:
      tables: over `u` and some of these; a table's variables are in order of elimination.
    """
    if len(scope) == 1:
        both = model.unary[u][:, None]
        for own, table in tables:
            both = both + (table if len(own) == 2 else table[:, None])
        return _lowest(both)
    place = {v: axis for axis, v in enumerate((u, *scope))}
    ones = [1] * len(scope)
    large = math.prod([model.sizes[v] for v in place]) > LARGE
    total = model.unary[u].reshape(-1, *ones)
    for number, (own, table) in enumerate(tables, 1):
        shape = [1, *ones]
        for v in own:
            shape[place[v]] = model.sizes[v]
        term = table.reshape(shape)
        if large and number == len(tables):
            return _least_sum(total, term)
        total = total + term
    return _lowest(total)


def _lowest(total: Floats) -> Floats:
    least: Floats = total.min(axis=0)
    return least


def _least_sum(one: Floats, other: Floats) -> Floats:
    """Minimum over the first axis of the sum of two arrays.

    Axes of one array alone, of the other alone and of both become one axis each, the longest last:
    inner loops are long. Blocks of the result stay in cache while all labels pass.
    """
    shape = np.broadcast_shapes(one.shape, other.shape)[1:]
    if len(one) * math.prod(shape) < BLOCKED:
        whole: Floats = np.empty(shape)
        _write_least(one, other, whole)
        return whole
    axes = range(1, one.ndim)
    groups = [
        [i for i in axes if (one.shape[i] > 1, other.shape[i] > 1) == which]
        for which in ((True, False), (False, True), (True, True))
    ]
    groups[2] += [i for i in axes if one.shape[i] == other.shape[i] == 1]
    sizes = [math.prod([shape[i - 1] for i in group]) for group in groups]
    ranks = sorted(range(3), key=sizes.__getitem__)
    order = [i for rank in ranks for i in groups[rank]]
    own = [1 if rank == 1 else sizes[rank] for rank in ranks]
    others = [1 if rank == 0 else sizes[rank] for rank in ranks]
    first = one.transpose(0, *order).reshape(-1, *own)
    second = other.transpose(0, *order).reshape(-1, *others)
    least: Floats = np.empty([sizes[rank] for rank in ranks])
    across = max(BLOCK // least.shape[2], 1)
    down = max(across // least.shape[1], 1)
    for i in range(0, least.shape[0], down):
        for j in range(0, least.shape[1], across):
            at = slice(i, i + down), slice(j, j + across)
            _write_least(_block(first, *at), _block(second, *at), least[at])
    found: Floats = least.reshape([shape[i - 1] for i in order]).transpose(np.argsort(order))
    return found


def _block(array: Floats, rows: slice, columns: slice) -> Floats:
    """A block of an array of four axes, all of an axis of length 1."""
    whole = slice(None)
    found: Floats = array[
        :, rows if array.shape[1] > 1 else whole, columns if array.shape[2] > 1 else whole
    ]
    return found


def _write_least(one: Floats, other: Floats, least: Floats) -> None:
    """Writes the minimum over the first axis of a sum."""
    np.add(one[0], other[0], out=least)
    row = np.empty_like(least)
    for a, b in zip(one[1:], other[1:], strict=True):
        np.minimum(least, np.add(a, b, out=row), out=least)


def least_completion(model: PairwiseModel, labels: Ints) -> float:
    """Least energy of all labellings that begin with `labels`."""
    free = model.all_labels()[len(labels) :]
    return eliminate(model.restricted([*np.reshape(labels, (-1, 1)), *free])).energy


def minimum_within(model: PairwiseModel, start: Labelling, max_entries: int) -> Labelling:
    """Labelling of least energy under a limit of memory; never worse than `start`.

    Variables are fixed at their labels in `start` until no table has more than `max_entries`
    entries. The result is exact over the remaining variables.
    """
    small = eliminate_small(model)
    rest = small.model
    sizes = list(rest.sizes)
    order, fixed = _greedy_order(sizes, adjacency(rest), max_entries)
    if not fixed:
        return small.lift(eliminate(rest, order))
    kept = rest.all_labels()
    for u in fixed:
        kept[u] = np.array([start.labels[u]], dtype=np.int64)
    return small.lift(lift_labelling(eliminate(rest.restricted(kept), order), kept))
