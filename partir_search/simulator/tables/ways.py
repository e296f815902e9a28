"""Redistributions that labels call for: layouts of operands, results and values at rest."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from partir_search.ir.partition import Layout, Partial, Window
from partir_search.ir.rule import Dims, OpRule
from partir_search.simulator.arrays import Ints


class Way(NamedTuple):
    """A redistribution between layouts with partial results, and windows taken after."""

    source: Layout
    partial: Partial
    target: Layout
    keep: Partial
    windows: tuple[Window, ...] = ()


T = TypeVar("T")
J = TypeVar("J", bound=Hashable)
K = TypeVar("K")

MOST_COUNTED = 1 << 20  # numbers up to which the distinct ones are found by counting


class Picked(NamedTuple, Generic[T]):
    """An array of few distinct items: `items[at[...]]`."""

    items: Sequence[T]
    at: Ints


def rows(codes: Ints) -> Picked[tuple[int, ...]]:
    """Distinct rows of a [..., axes] array."""
    low = int(np.min(codes, initial=0))
    base = int(np.max(codes, initial=0)) - low + 1
    packed = np.zeros(codes.shape[:-1], dtype=np.int64)
    for a in range(codes.shape[-1]):
        packed = packed * base + (codes[..., a] - low)
    distinct, at = _distinct(packed, base ** codes.shape[-1])
    items = [_unpacked(int(c), base, low, codes.shape[-1]) for c in distinct]
    return Picked(items, at)


def _unpacked(packed: int, base: int, low: int, length: int) -> tuple[int, ...]:
    found = []
    for _ in range(length):
        packed, last = divmod(packed, base)
        found.append(last + low)
    return tuple(reversed(found))


def _distinct(numbers: Ints, below: int) -> tuple[Ints, Ints]:
    """Distinct numbers in order, and the position of each number among them."""
    if below > MOST_COUNTED:
        found, at = np.unique(numbers, return_inverse=True)
        return found, at.reshape(numbers.shape)
    met = np.zeros(below, dtype=np.bool_)
    met[numbers] = True
    place = np.cumsum(met) - 1
    return np.flatnonzero(met), place[numbers]


def mapped(picked: Picked[T], to: Callable[[T], J]) -> Picked[J]:
    """Distinct images of items."""
    numbers: dict[J, int] = {}
    each = [numbers.setdefault(to(item), len(numbers)) for item in picked.items]
    return Picked(list(numbers), np.array(each, dtype=np.int64)[picked.at])


Pairings = dict[Hashable, Sequence[Any]]


def paired(
    one: Picked[T], other: Picked[K], join: Callable[[T, K], J], known: Pairings
) -> Picked[J]:
    """Distinct pairs of items that occur together, joined.

    Args:
      known: lists of joined items: equal pairings have the same list.
    """
    n = len(other.items)
    distinct, at = _distinct(one.at * n + other.at, n * len(one.items))
    key = tuple(one.items), tuple(other.items), distinct.tobytes()
    items = known.get(key)
    if items is None:
        pairs = ((one.items[c // n], other.items[c % n]) for c in distinct.tolist())
        items = known[key] = [join(*pair) for pair in pairs]
    return Picked(items, at)


def tile_layout(tiles: Sequence[int], rank: int, order: Sequence[int]) -> Layout:
    """Layout of a value with these tiled dims along the axes (`Partition.layout`)."""
    dims: list[tuple[int, ...]] = [()] * rank
    for a in order:
        if tiles[a] >= 0:
            dims[tiles[a]] = (*dims[tiles[a]], a)
    return tuple(dims)


def loop_layout(loops: Sequence[int], rule: OpRule, dims: Dims, order: Sequence[int]) -> Layout:
    """Layout that loops give to an operand or result (`Partition.op_layout`)."""
    out: list[tuple[int, ...]] = [()] * len(dims)
    for a in order:
        if loops[a] >= 0 and (d := rule.dim_of(dims, loops[a])) >= 0:
            out[d] = (*out[d], a)
    return tuple(out)
