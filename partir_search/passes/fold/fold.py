"""Folding of repeated ops (a layer's forward pass, backward pass, optimizer update) into one.

Tandem repeats of op fingerprints are found in the program's list of ops, with the ops of large loop
bodies in it (`passes/fold/linear.py`). Values at equal positions of the copies (results, operands,
hence arguments and loop carries) become one class, unless known to differ: by name
(`passes/fold/layers.py`), or because earlier repeats left them in different classes. The quotient
is a module of a few hundred ops at any depth; the search works on the quotient. Colour refinement
was tried instead: it merges unlike layers, or stops folding as depth grows.
"""

from __future__ import annotations

import dataclasses
import functools
from array import array
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from partir_search.ir.analysis.union_find import UnionFind
from partir_search.ir.core import Module, Op, Operand, Value
from partir_search.passes.fold.fingerprints import fingerprints
from partir_search.passes.fold.layers import leaf_names
from partir_search.passes.fold.linear import KeptOps, LinearOps, Ties, kept_ops, linearize, weight
from partir_search.passes.fold.quotient import make_quotient

MIN_PERIOD = 6  # ops; shorter periods occur by chance (two adjacent broadcasts, say)

ValueKey = tuple[Hashable, Hashable, Hashable]  # name, mark and class of a value; None if unknown


@dataclasses.dataclass(frozen=True, slots=True)
class Repeat:
    """A tandem repeat: `copies` copies of `period` ops each, from position `start` of the list."""

    start: int
    period: int
    copies: int

    @property
    def stop(self) -> int:
        """Position after the last copy."""
        return self.start + self.period * self.copies


@dataclasses.dataclass(eq=False, slots=True)
class Folded:
    """A module and its quotient.

    Attributes:
      original: the module before folding.
      module: the quotient; `op.count` is the number of original ops that an op represents.
      class_of: by original value id, the id of its quotient value; -1 for values inside dropped
        copies.
      body: ops kept from the module's body, and from opened bodies.
      alike: groups of quotient values to tile alike: the same value of copies kept separate.
    """

    original: Module
    module: Module
    class_of: array[int]
    body: KeptOps
    alike: tuple[tuple[int, ...], ...]


def fold(
    module: Module,
    key_of: Callable[[Op], Hashable],
    marks: Mapping[int, Hashable] = MappingProxyType({}),
    ties_of: Callable[[Op], Ties] | None = None,
) -> Folded:
    """Folds the repeats of a module.

    Args:
      key_of: function from an op to a key; ops of equal rule have equal keys.
      marks: by value id; values with different marks are not merged.
      ties_of: function from a region op to its ties; None opens no body.
    """
    linear = linearize(module, key_of, ties_of)
    prints = fingerprints(linear, key_of)
    names = leaf_names(module, linear, prints.tolist(), marks)
    classes = UnionFind(len(module.values))
    find = classes.find
    merged: set[int] = set()  # class ids of merged values

    def merge(a: Operand, b: Operand) -> None:
        if isinstance(a, Value) and isinstance(b, Value) and classes.merge(a.id, b.id):
            merged.add(find(a.id))

    merge_ops = functools.partial(_merge_ops, merge)
    ops = linear.ops

    placed: set[int] = set()  # ids of values in accepted repeats

    def value_key(x: Operand) -> ValueKey:
        if not isinstance(x, Value):
            return None, None, None
        root = find(x.id) if x.id in placed and x.type.shape else None
        return names.get(x.id), marks.get(x.id), root

    def accept(repeat: Repeat) -> None:
        accepted.append(repeat)
        for offset in range(repeat.period):
            first_op = ops[repeat.start + offset]
            for k in range(1, repeat.copies):
                merge_ops(first_op, ops[repeat.start + k * repeat.period + offset])
        for op in ops[repeat.start : repeat.stop]:
            placed.update(x.id for x in (*op.operands, *op.results) if isinstance(x, Value))

    def enters_alike(repeat: Repeat) -> bool:
        """True if the inputs of all copies are known to correspond."""
        pairs = _entering(repeat, ops)
        return all(x.id == y.id or _share_key(value_key(x), value_key(y)) for x, y in pairs)

    accepted: list[Repeat] = []
    doubtful: list[Repeat] = []
    first_prints = _refine(prints, ops, 0, len(ops), value_key)  # names alone: no value is placed
    for found in sorted(find_repeats(first_prints), key=lambda s: s.start):
        within = [found]
        if not _compatible(found, ops, value_key):
            refined = _refine(prints, ops, found.start, found.stop, value_key)
            within = find_repeats(refined, found.start)
        for repeat in within:
            ops_per_copy = sum(map(weight, ops[repeat.start : repeat.start + repeat.period]))
            if ops_per_copy >= MIN_PERIOD or enters_alike(repeat):
                accept(repeat)
            else:
                doubtful.append(repeat)
    for repeat in doubtful:  # accepted only if their inputs are merged already
        if all(find(x.id) == find(y.id) for x, y in _entering(repeat, ops)):
            accept(repeat)
    accepted.sort(key=lambda s: s.start)
    _merge_tied(linear, find, merge)
    chosen: list[int] = []  # positions in the list of ops
    op_of = array("i", [-1]) * len(ops)
    at = 0
    for repeat in (*accepted, Repeat(len(ops), 0, 0)):
        for i in range(at, repeat.start):
            op_of[i] = len(chosen)
            chosen.append(i)
        middle = repeat.start + (repeat.copies // 2) * repeat.period
        for offset in range(repeat.period):
            for k in range(repeat.copies):
                op_of[repeat.start + k * repeat.period + offset] = len(chosen)
            chosen.append(middle + offset)
        at = repeat.stop
    chosen_ops, chosen_prints = [ops[i] for i in chosen], prints[chosen].tolist()
    first_equal = _merge_duplicates(
        chosen_ops, chosen_prints, names, find, lambda v: find(v) in merged, merge_ops
    )
    _merge_tied(linear, find, merge)
    kept = [q for q, equal in enumerate(first_equal) if equal == q]
    kept_index = {q: n for n, q in enumerate(kept)}
    op_of = array("i", [kept_index[first_equal[q]] for q in op_of])
    counts = np.bincount(op_of, minlength=len(kept)).tolist()
    chosen = [chosen[q] for q in kept]
    roots = array("i", [find(v.id) for v in module.values])
    body = kept_ops(linear, chosen, op_of)
    count_of = {ops[i].id: n for i, n in zip(chosen, counts, strict=True)}
    quotient, class_of, alike = make_quotient(module, body, count_of, roots)
    return Folded(module, quotient, class_of, body, alike)


def _merge_tied(
    linear: LinearOps, find: Callable[[int], int], merge: Callable[[Operand, Operand], None]
) -> None:
    """Merges values tied to merged arguments or results of an opened region."""
    for op_at, opened in linear.opened.items():
        op = linear.ops[op_at]
        own = {v.id for r in op.regions for v in r.args}
        own |= {v.id for r in op.regions for v in r.results if isinstance(v, Value)}
        first: dict[Hashable, Sequence[tuple[Value, int]]] = {}
        for group in opened.ties:
            own_value = next((v.id for v, _ in group if v.id in own), None)
            form = tuple((v.type.shape, v.type.dtype, lead) for v, lead in group)
            first_group = (
                group if own_value is None else first.setdefault((find(own_value), form), group)
            )
            for (x, _), (y, _) in zip(first_group, group, strict=True):
                merge(x, y)


def _merge_ops(merge: Callable[[Operand, Operand], None], a: Op, b: Op) -> None:
    """Merges the operands and results of two ops, and the values in their regions."""
    for x, y in zip(a.operands, b.operands, strict=True):
        merge(x, y)
    for x, y in zip(a.results, b.results, strict=True):
        merge(x, y)
    for r, s in zip(a.regions, b.regions, strict=True):
        for x, y in zip((*r.args, *r.results), (*s.args, *s.results), strict=True):
            merge(x, y)
        for p, q in zip(r.ops, s.ops, strict=True):
            _merge_ops(merge, p, q)


def _merge_duplicates(
    ops: Sequence[Op],
    prints: Sequence[int],
    names: Mapping[int, int],
    find: Callable[[int], int],
    shared: Callable[[int], bool],
    merge_ops: Callable[[Op, Op], None],
) -> list[int]:
    """Merges ops that compute the same from the same classes of values.

    Optimizers update leaf by leaf in the order of names, so equal updates of layers need not form a
    tandem repeat. Arguments that differ in their paths' numbers, and values computed from arguments
    alone, count as equal if another operand is equal.

    Args:
      prints: fingerprint of each op.
      names: leaf names by value id (`leaf_names`).
      find: function from a value id to its class.
      shared: function from a value id to True if its class has several values.
      merge_ops: merges the values of two ops.

    Returns:
      by op, the position of the first op that computes the same.
    """
    maker = {r.id: (i, k) for i, op in enumerate(ops) for k, r in enumerate(op.results)}

    no_maker = -1, -1

    def merge(a: int, b: int) -> None:
        """Merges two ops, and the makers of their operands that have leaf names."""
        merge_ops(ops[a], ops[b])
        for x, y in zip(ops[a].operands, ops[b].operands, strict=True):
            if not isinstance(x, Value) or not isinstance(y, Value):
                continue
            if x.id in names and names[x.id] == names.get(y.id):
                (one, k), (other, j) = maker.get(x.id, no_maker), maker.get(y.id, no_maker)
                if one != other and k == j >= 0 and prints[one] == prints[other]:
                    merge(one, other)

    first_equal = list(range(len(ops)))
    for _ in range(3):  # merging operands makes further ops equal
        seen: dict[Hashable, int] = {}
        before = list(first_equal)
        for i, op in enumerate(ops):
            values = [x for x in op.operands if isinstance(x, Value)]
            if not values or first_equal[i] != i:
                continue
            computation = (prints[i], *(names.get(r.id) for r in op.results))
            first_op = seen.setdefault((computation, tuple(find(v.id) for v in values)), i)
            arrays = [v.id for v in values if v.type.shape]
            deep = [v for v in arrays if v not in names or shared(v)]
            for v in deep:
                if first_op == i:
                    named_operands = tuple(
                        ("named", names[x.id]) if x.id in names and x.id != v else find(x.id)
                        for x in values
                    )
                    first_op = seen.setdefault((computation, named_operands), i)
            first_operands = {x.id for x in ops[first_op].operands if isinstance(x, Value)}
            decisive = deep or arrays or [v.id for v in values]
            if any(v in first_operands for v in decisive):  # two uses of one value are no repeat
                continue
            if first_op != i:
                merge(first_op, i)
                first_equal[i] = first_op
        if first_equal == before:
            break
    for i, equal in enumerate(first_equal):  # an op's first equal precedes it
        first_equal[i] = first_equal[equal]
    return first_equal


def _refine(
    prints: np.ndarray[Any, Any],
    ops: Sequence[Op],
    start: int,
    stop: int,
    value_key: Callable[[Operand], ValueKey],
) -> np.ndarray[Any, Any]:
    """Returns the fingerprints of ops `start` to `stop`, refined by the keys of operands."""
    ids: dict[Hashable, int] = {}
    refined = [
        ids.setdefault((int(prints[i]), *map(value_key, ops[i].operands)), len(ids))
        for i in range(start, stop)
    ]
    return np.array(refined, dtype=np.int64)


def _compatible(
    repeat: Repeat, ops: Sequence[Op], value_key: Callable[[Operand], ValueKey]
) -> bool:
    """True if no corresponding operands of the copies have different keys."""
    for offset in range(repeat.start, repeat.start + repeat.period):
        keys = [value_key(x) for x in ops[offset].operands]
        for at in range(offset + repeat.period, repeat.stop, repeat.period):
            for one, y in zip(keys, ops[at].operands, strict=True):
                for p, q in zip(one, value_key(y), strict=True):
                    if p is not None and q is not None and p != q:
                        return False
    return True


def _share_key(one: ValueKey, other: ValueKey) -> bool:
    """True if two keys agree in a component that both have."""
    return any(p is not None and p == q for p, q in zip(one, other, strict=True))


def _entering(repeat: Repeat, ops: Sequence[Op]) -> Iterator[tuple[Value, Value]]:
    """Yields pairs of outer arrays read at the same place by the first and by a later copy."""
    one = ops[repeat.start : repeat.start + repeat.period]
    inside = {r.id for op in one for r in op.results}
    for offset, first in enumerate(one):
        for k in range(1, repeat.copies):
            other = ops[repeat.start + k * repeat.period + offset]
            for x, y in zip(first.operands, other.operands, strict=True):
                if not isinstance(x, Value) or not isinstance(y, Value):
                    continue
                if x.type.shape and x.id not in inside:
                    yield x, y


def find_repeats(prints: np.ndarray[Any, Any], base: int = 0, occurrences: int = 1) -> list[Repeat]:
    """Returns the tandem repeats of a sequence of fingerprints, in order.

    The repeat covering most is found first, then repeats to the left and right of it.

    Args:
      prints: fingerprints of ops.
      base: position of the first op.
      occurrences: most times that the rarest fingerprint of a copy occurs in the copy.
    """
    best: Repeat | None = None
    for period in _periods(prints, occurrences):
        equal = np.flatnonzero(
            np.diff(np.concatenate(([0], prints[period:] == prints[:-period], [0])))
        )
        starts, lengths = equal[::2], equal[1::2] - equal[::2]
        if not len(lengths):
            continue
        covers = (lengths + period) // period * period
        covers[lengths < period] = 0
        i = int(np.argmax(covers))
        cover = int(covers[i])
        if cover and (
            best is None
            or cover > best.period * best.copies
            or (cover == best.period * best.copies and period < best.period)
        ):
            best = Repeat(base + int(starts[i]), period, cover // period)
    if best is None:
        return []
    left = find_repeats(prints[: best.start - base], base, occurrences)
    right = find_repeats(prints[best.stop - base :], best.stop, occurrences)
    return [*left, best, *right]


def _periods(prints: np.ndarray[Any, Any], occurrences: int) -> list[int]:
    """Returns the distances of equal fingerprints, if found at least twice.

    Args:
      occurrences: distances from a fingerprint to the next equal ones, up to this number.
    """
    order = np.argsort(prints, kind="stable")
    found = set[int]()
    for k in range(1, min(occurrences, len(prints) - 1) + 1):
        same = prints[order][k:] == prints[order][:-k]
        gaps, counts = np.unique((order[k:] - order[:-k])[same], return_counts=True)
        found.update(gaps[counts >= np.minimum(2, gaps)].tolist())
    return sorted(found)
