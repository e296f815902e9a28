"""Redistributions that labels call for: layouts of operands, results and values at rest."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, overload

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

    @property
    def moves(self) -> bool:
        """The value leaves the layout, is reduced, or windows of the value are taken."""
        source, partial, target, keep, windows = self
        return bool(source != target or partial != keep or windows)


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


class Joined(Sequence[J]):
    """Items made at the first reading, each once."""

    def __init__(self, length: int, make: Callable[[int], J]) -> None:
        self._items: list[J | None] = [None] * length
        self._make = make

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, i: int) -> J: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[J]: ...
    def __getitem__(self, i: int | slice) -> J | Sequence[J]:
        if isinstance(i, slice):
            return [self[j] for j in range(len(self._items))[i]]
        found = self._items[i]
        if found is None:
            found = self._items[i] = self._make(i)
        return found


def altered(picked: Picked[T], to: Callable[[T], J]) -> Picked[J]:
    """Images of items, equal ones included, made at the first reading."""
    items = picked.items
    return Picked(Joined(len(items), lambda i: to(items[i])), picked.at)


Pairings = dict[Hashable, Sequence[Any]]


def paired(
    one: Picked[T], other: Picked[K], join: Callable[[T, K], J], known: Pairings
) -> Picked[J]:
    """Distinct pairs of items met together, joined at the first reading.

    Args:
      known: lists of joined items: equal pairings have the same list.
    """
    n = len(other.items)
    distinct, at = _distinct(one.at * n + other.at, n * len(one.items))
    key = tuple(one.items), tuple(other.items), distinct.tobytes()
    items = known.get(key)
    if items is None:
        codes, first, second = distinct.tolist(), one.items, other.items
        items = known[key] = Joined(
            len(codes), lambda i: join(first[codes[i] // n], second[codes[i] % n])
        )
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
