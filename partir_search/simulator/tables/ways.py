"""Redistributions that labels call for: layouts of operands, results and values at rest."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from partir_search.ir.partition import Layout, Partial, Window
from partir_search.ir.rule import NONE, Dims, OpRule
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


T = TypeVar("T", bound=Hashable)
J = TypeVar("J", bound=Hashable)
K = TypeVar("K", bound=Hashable)

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


class Ways:
    """Redistributions by number, in all orders of axes; each made when it is read."""

    def __init__(self) -> None:
        self._made: dict[int, Way] = {}
        self._numbers: dict[Way, int] = {}  # of those not made from pairs
        self._pairs: dict[Hashable, _Pairs] = {}
        self._blocks: list[tuple[int, Callable[[int], Way]]] = []  # first number, and its maker
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Way:
        found = self._made.get(number)
        if found is None:
            block = bisect.bisect_right(self._blocks, number, key=lambda each: each[0]) - 1
            first, make = self._blocks[block]
            found = self._made[number] = make(number - first)
        return found

    def number(self, way: Way) -> int:
        """Number of a redistribution."""
        found = self._numbers.setdefault(way, self._count)
        if found == self._count:
            self._made[found] = way
            self._count += 1
        return found

    def paired(
        self, one: Picked[T], other: Picked[K], join: Callable[[T, K], Way], kind: Hashable
    ) -> Ints:
        """Numbers of the redistributions between pairs of items met together.

        Args:
          kind: of `join`; joins of one kind make equal redistributions of equal items.
        """
        pairs = self._pairs.get(kind)
        if pairs is None:
            pairs = self._pairs[kind] = _Pairs(join)
        first, second = pairs.places(one.items, other.items)
        numbers = pairs.numbers[first[:, None], second]
        found: Ints = numbers[one.at, other.at]
        if np.min(found, initial=0) < 0:
            n = len(other.items)
            codes, _ = _distinct((one.at * n + other.at)[found < 0], n * len(one.items))
            places = np.stack((first[codes // n], second[codes % n]), axis=1)
            new = self._added(len(codes), lambda k: pairs.way(*places[k].tolist()))
            numbers[codes // n, codes % n] = pairs.numbers[places[:, 0], places[:, 1]] = new
            found = numbers[one.at, other.at]
        return found

    def _added(self, count: int, make: Callable[[int], Way]) -> Ints:
        """Numbers of `count` more redistributions, each made when it is read."""
        self._blocks.append((self._count, make))
        self._count += count
        return np.arange(self._count - count, self._count)

    def any_moves(self, items: Ints) -> bool:
        """True if some of the redistributions moves or reduces the value."""
        return any(self[i].moves for i in _distinct(items, self._count)[0].tolist())


class _Pairs:
    """Numbers of the redistributions between items of two kinds; NONE: none yet."""

    def __init__(self, join: Callable[[Any, Any], Way]) -> None:
        self._join = join
        self._first: dict[Any, int] = {}
        self._second: dict[Any, int] = {}
        self._items: tuple[list[Any], list[Any]] = ([], [])
        self.numbers: Ints = np.full((0, 0), NONE, dtype=np.int64)

    def places(self, one: Sequence[Any], other: Sequence[Any]) -> tuple[Ints, Ints]:
        """Rows and columns of items."""
        found = []
        for given, known, items in zip(
            (one, other), (self._first, self._second), self._items, strict=True
        ):
            found.append(np.array([known.setdefault(x, len(known)) for x in given], dtype=np.int64))
            items += list(known)[len(items) :]
        more = [
            2 * len(items) - n for items, n in zip(self._items, self.numbers.shape, strict=True)
        ]
        if any(len(x) > n for x, n in zip(self._items, self.numbers.shape, strict=True)):
            wider = [(0, max(n, 0)) for n in more]
            self.numbers = np.pad(self.numbers, wider, constant_values=NONE)
        return found[0], found[1]

    def way(self, row: int, column: int) -> Way:
        """The redistribution between two items."""
        return self._join(self._items[0][row], self._items[1][column])


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
