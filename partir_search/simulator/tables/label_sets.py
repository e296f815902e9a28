"""Labels of a class of values and of an op: one entry per mesh axis.

A class's label is the tiled dim along each axis, or NONE. An op's label is the factor of its loop
along each axis, NONE, or a pass (a code below NONE): the op runs without a loop on partial operands
and its results are partial. Beside each entry stands whether the op's results stay partial at rest.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np

from partir_search.ir.core import Shape
from partir_search.ir.rule import DEFERRABLE, NONE, OpRule
from partir_search.simulator.arrays import Bools, Ints

FIRST_PASS = -3  # code of an op's first pass; the next ones count down

_T = TypeVar("_T")
Entry = tuple[int, bool]  # code, results stay partial
WHOLE: Entry = (NONE, False)  # the one entry on an axis of one device


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class LabelSet:
    """Labels of one variable, shared by all variables with equal ones.

    Attributes:
      codes: [labels, axes] dims, or factors and passes.
      deferred: [labels, axes] results stay partial; False for classes.
      index: position of each label by its codes and deferred flags.
    """

    codes: Ints
    deferred: Bools
    index: dict[tuple[tuple[int, ...], tuple[bool, ...]], int]

    @classmethod
    def of(cls, labels: Sequence[tuple[Entry, ...]], axes: int) -> LabelSet:
        """The set of labels given as entries per axis."""
        codes = np.array([[c for c, _ in label] for label in labels], dtype=np.int64)
        deferred = np.array([[d for _, d in label] for label in labels], dtype=np.bool_)
        keys = ((tuple(c for c, _ in x), tuple(d for _, d in x)) for x in labels)
        index = {key: i for i, key in enumerate(keys)}
        return cls(codes.reshape(-1, axes), deferred.reshape(-1, axes), index)

    def symmetric(self, one: int, other: int) -> bool:
        """True if every label has a label with the entries of two axes exchanged."""
        order = list(range(self.codes.shape[1]))
        order[one], order[other] = other, one
        exchanged = zip(
            map(tuple, self.codes[:, order].tolist()),
            map(tuple, self.deferred[:, order].tolist()),
            strict=True,
        )
        return all(key in self.index for key in exchanged)

    def __len__(self) -> int:
        return len(self.codes)

    def groups(self, *axes: int) -> Ints:
        """[labels] equal numbers for labels that are equal on all axes but some."""
        rest = np.hstack((np.delete(self.codes, axes, 1), np.delete(self.deferred, axes, 1)))
        if not rest.shape[1]:
            return np.zeros(len(self), dtype=np.int64)
        found: Ints = np.unique(rest, axis=0, return_inverse=True)[1].ravel()
        return found


class LabelIndex:
    """Labels of variables by their codes and deferred flags, all variables at once."""

    def __init__(self, sets: Sequence[LabelSet]) -> None:
        """Index of the variables' sets.

        Raises:
          ValueError: labels of too many axes to number.
        """
        known = {id(each): each for each in sets}
        number = {key: i for i, key in enumerate(known)}
        self._set_of = np.array([number[id(each)] for each in sets], dtype=np.int64)
        axes = next((each.codes.shape[1] for each in sets), 0)
        codes = np.concatenate(
            [np.zeros((1, axes), dtype=np.int64), *(s.codes for s in known.values())]
        )
        self._least = int(codes.min(initial=0))
        self._most = int(codes.max(initial=0))
        self._radix = 2 * (self._most - self._least + 1)
        if len(known) * self._radix**axes >= 1 << 62:
            raise ValueError(f"labels of {axes} axes")
        keys = [
            self._keys(np.full(len(s), i), s.codes, s.deferred)
            for i, s in enumerate(known.values())
        ]
        places = [np.arange(len(each)) for each in keys]
        none = np.zeros(0, dtype=np.int64)
        every = np.concatenate([none, *keys])
        order = np.argsort(every)
        self._sorted, self._places = every[order], np.concatenate([none, *places])[order]

    def labels(self, variables: Ints, codes: Ints, deferred: Bools) -> Ints:
        """[variables] labels.

        Args:
          codes / deferred: [variables, axes], as in the variables' sets.

        Raises:
          KeyError: no label has the codes.
        """
        keys = self._keys(self._set_of[variables], codes, deferred)
        at = np.searchsorted(self._sorted, keys)
        outside = ((codes < self._least) | (codes > self._most)).any(axis=1)
        missing = np.flatnonzero(outside | (self._sorted.take(at, mode="clip") != keys))
        if len(missing):
            raise KeyError(f"no label {codes[missing].tolist()} of {variables[missing].tolist()}")
        found: Ints = self._places[at]
        return found

    def _keys(self, numbers: Ints, codes: Ints, deferred: Bools) -> Ints:
        found = numbers
        for entry in (2 * (codes - self._least) + deferred).T:
            found = found * self._radix + entry
        return found


def class_labels(
    extents: Sequence[Shape], sizes: Sequence[int], most: float = math.inf
) -> LabelSet:
    """All tilings of a class that divide its dims; axes of one device tile nothing.

    Args:
      extents: [axes] the shape of the class with 1 for dims closed on the axis.
      sizes: of the axes.
      most: limit of the labels.

    Raises:
      ValueError: there are more labels than allowed.
    """
    rank, axes = len(extents[0]), len(sizes)
    options = [
        [NONE, *(d for d in range(rank) if extents[a][d] > 1 and extents[a][d] % sizes[a] == 0)]
        if sizes[a] > 1
        else [NONE]
        for a in range(axes)
    ]
    whole = [max(extents[a][d] for a in range(axes)) for d in range(rank)]

    def divides(label: tuple[int, ...]) -> bool:
        return all(
            whole[d] % math.prod(sizes[a] for a in range(axes) if label[a] == d) == 0
            for d in set(label)
            if d >= 0
        )

    found = _listed(filter(divides, itertools.product(*options)), most)
    return LabelSet.of([tuple((d, False) for d in label) for label in found], axes)


def op_labels(
    rule: OpRule,
    sizes: Sequence[int],
    loops: bool,
    deferrable: bool,
    passes: Sequence[bool],
    most: float = math.inf,
) -> LabelSet:
    """Labels of an op: each choice of a loop per axis of several devices, with reductions finished
    or deferred.

    Args:
      sizes: of the mesh's axes.
      loops: the op has loops of its own; else its tilings are those of its result's class.
      deferrable: some result has a single use that partial results may pass.
      passes: [passes] the reduction may be finished at the op's results.
      most: limit of the labels.

    Raises:
      ValueError: there are more labels than allowed.
    """
    factors = [f for f, n in enumerate(rule.sizes) if n > 1 and f not in rule.blocked]
    options: list[list[Entry]] = []
    for size in sizes:
        entries: list[Entry] = [WHOLE]
        if size == 1:
            options.append(entries)
            continue
        for f in factors if loops else ():
            if rule.sizes[f] % size == 0:
                entries.append((f, False))
                partial = any(rule.dim_of(dims, f) < 0 for dims in rule.results)
                if deferrable and partial and rule.reducers[f] in DEFERRABLE:
                    entries.append((f, True))
        for i, ends in enumerate(passes):
            entries += [(FIRST_PASS - i, False)] if ends else []
            entries += [(FIRST_PASS - i, True)] if deferrable else []
        options.append(entries)

    def legal(label: tuple[Entry, ...]) -> bool:
        looped = [code for code, _ in label]
        for f in {code for code in looped if code >= 0}:
            if rule.sizes[f] % _tiles(sizes, looped, f):
                return False
            for g in rule.majors_of(f):
                if _tiles(sizes, looped, g) != rule.sizes[g]:
                    return False
        return True

    return LabelSet.of(_listed(filter(legal, itertools.product(*options)), most), len(sizes))


def _listed(labels: Iterable[_T], most: float) -> list[_T]:
    """Labels in a list that ends before it is too long: their number is exponential in the axes."""
    found: list[_T] = []
    for label in labels:
        if len(found) >= most:
            raise ValueError(f"more than {most} labels of one variable")
        found.append(label)
    return found


def _tiles(sizes: Sequence[int], looped: Sequence[int], factor: int) -> int:
    return math.prod(n for n, code in zip(sizes, looped, strict=True) if code == factor)
