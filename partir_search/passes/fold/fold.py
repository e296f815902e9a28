"""Folding: one representative for ops that repeat (a layer's forward, backward, optimizer update).

Tandem repeats of equation fingerprints are found in the program's op list (with those of large
loops' bodies in it, `passes/fold/linear.py`); values at equal positions of the repeats become one
class (results, operands, hence arguments and loop carries), unless some are known to be
unlike: by name (`passes/fold/layers.py`), or because earlier repeats told them apart. The quotient
is a module again, a few hundred ops at any depth, on which search works. Tried against colour
refinement, which mixes unlike layers or stops folding as depth grows.
"""

from __future__ import annotations

import dataclasses
import functools
from array import array
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpy as np

from partir_search.ir.analysis.union_find import UnionFind
from partir_search.ir.core import Literal, Module, Op, Operand, Value
from partir_search.passes.fold.layers import leaf_names
from partir_search.passes.fold.linear import Linear, Places, Ties, linearize, places_of, weight
from partir_search.passes.fold.quotient import make_quotient

SHORT = 6  # periods below this many ops occur by chance (two adjacent broadcasts, say)

Role = tuple[Hashable, Hashable, Hashable]  # name, mark and class of a value, None if not known


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """`repeats` copies of `period` ops from position `start` of the module's body."""

    start: int
    period: int
    repeats: int

    @property
    def stop(self) -> int:
        return self.start + self.period * self.repeats


@dataclasses.dataclass(eq=False, slots=True)
class Folded:
    """A module and its quotient.

    Attributes:
      original: the module that was folded.
      module: the quotient; `op.count` says how many ops one stands for.
      class_of: quotient value id per original value id (-1: inside a repeat that was dropped).
      body: ops that are left of the module's body, and of bodies that were opened.
      alike: quotient values that are to be tiled alike: the same of copies that were kept apart.
    """

    original: Module
    module: Module
    class_of: array[int]
    body: Places
    alike: tuple[tuple[int, ...], ...]


def fold(
    module: Module,
    key_of: Callable[[Op], Hashable],
    marks: Mapping[int, Hashable] = MappingProxyType({}),
    ties_of: Callable[[Op], Ties] | None = None,
) -> Folded:
    """Folds the repeats of `module`.

    Args:
      key_of: gives equal keys to ops of equal rule.
      marks: by value id; values with different marks are not merged.
      ties_of: ties of a region op; without, all bodies stay closed.
    """
    linear = linearize(module, key_of, ties_of)
    prints = _fingerprints(linear, key_of)
    names = leaf_names(module, linear, prints.tolist(), marks)
    classes = UnionFind(len(module.values))
    find = classes.find
    merged: set[int] = set()  # ids that have stood for others

    def merge(a: Operand, b: Operand) -> None:
        if isinstance(a, Value) and isinstance(b, Value) and classes.merge(a.id, b.id):
            merged.add(find(a.id))

    merge_ops = functools.partial(_merge_ops, merge)
    ops = linear.ops

    placed: set[int] = set()  # ids of values in accepted segments

    def role(x: Operand) -> Role:
        if not isinstance(x, Value):
            return None, None, None
        root = find(x.id) if x.id in placed and x.type.shape else None
        return names.get(x.id), marks.get(x.id), root

    def accept(segment: Segment) -> None:
        segments.append(segment)
        for offset in range(segment.period):
            first = ops[segment.start + offset]
            for k in range(1, segment.repeats):
                merge_ops(first, ops[segment.start + k * segment.period + offset])
        for op in ops[segment.start : segment.stop]:
            placed.update(x.id for x in (*op.operands, *op.results) if isinstance(x, Value))

    def told(segment: Segment) -> bool:
        """True if entering values are known to be alike: short periods also occur by chance."""
        pairs = _entering(segment, ops)
        return all(x.id == y.id or _same_role(role(x), role(y)) for x, y in pairs)

    segments: list[Segment] = []
    doubtful: list[Segment] = []
    first = _with_roles(prints, ops, 0, len(ops), role)  # nothing is placed yet: names alone
    for found in sorted(find_repeats(first), key=lambda s: s.start):
        within = [found]
        if not _alike(found, ops, role):
            told_apart = _with_roles(prints, ops, found.start, found.stop, role)
            within = find_repeats(told_apart, found.start)
        for segment in within:
            heavy = sum(map(weight, ops[segment.start : segment.start + segment.period]))
            if heavy >= SHORT or told(segment):
                accept(segment)
            else:
                doubtful.append(segment)
    for segment in doubtful:  # may only repeat what others have merged
        if all(find(x.id) == find(y.id) for x, y in _entering(segment, ops)):
            accept(segment)
    segments.sort(key=lambda s: s.start)
    _merge_tied(linear, find, merge)
    chosen: list[int] = []  # original positions
    op_of = array("i", [-1]) * len(ops)
    at = 0
    for segment in (*segments, Segment(len(ops), 0, 0)):
        for i in range(at, segment.start):
            op_of[i] = len(chosen)
            chosen.append(i)
        middle = segment.start + (segment.repeats // 2) * segment.period
        for offset in range(segment.period):
            for k in range(segment.repeats):
                op_of[segment.start + k * segment.period + offset] = len(chosen)
            chosen.append(middle + offset)
        at = segment.stop
    left = [ops[i] for i in chosen], prints[chosen].tolist()
    twins = _twins(*left, names, find, lambda v: find(v) in merged, merge_ops)
    _merge_tied(linear, find, merge)
    kept = [q for q, twin in enumerate(twins) if twin == q]
    place = {q: n for n, q in enumerate(kept)}
    op_of = array("i", [place[twins[q]] for q in op_of])
    counts = np.bincount(op_of, minlength=len(kept)).tolist()
    chosen = [chosen[q] for q in kept]
    roots = array("i", [find(v.id) for v in module.values])
    body = places_of(linear, chosen, op_of)
    count_of = {ops[i].id: n for i, n in zip(chosen, counts, strict=True)}
    quotient, class_of, alike = make_quotient(module, body, count_of, roots)
    return Folded(module, quotient, class_of, body, alike)


def _merge_tied(
    linear: Linear, find: Callable[[int], int], merge: Callable[[Operand, Operand], None]
) -> None:
    """Merges what is tied to arguments and results of an opened region that have been merged."""
    for op_at, opened in linear.opened.items():
        op = linear.ops[op_at]
        own = {v.id for r in op.regions for v in r.args}
        own |= {v.id for r in op.regions for v in r.results if isinstance(v, Value)}
        first: dict[Hashable, Sequence[tuple[Value, int]]] = {}
        for group in opened.ties:
            held = next((v.id for v, _ in group if v.id in own), None)
            form = tuple((v.type.shape, v.type.dtype, lead) for v, lead in group)
            other = group if held is None else first.setdefault((find(held), form), group)
            for (x, _), (y, _) in zip(other, group, strict=True):
                merge(x, y)


def _merge_ops(merge: Callable[[Operand, Operand], None], a: Op, b: Op) -> None:
    """Merges what two ops read, make and hold in their regions."""
    for x, y in zip(a.operands, b.operands, strict=True):
        merge(x, y)
    for x, y in zip(a.results, b.results, strict=True):
        merge(x, y)
    for r, s in zip(a.regions, b.regions, strict=True):
        for x, y in zip((*r.args, *r.results), (*s.args, *s.results), strict=True):
            merge(x, y)
        for p, q in zip(r.ops, s.ops, strict=True):
            _merge_ops(merge, p, q)


def _twins(
    ops: Sequence[Op],
    prints: Sequence[int],
    names: Mapping[int, int],
    find: Callable[[int], int],
    shared: Callable[[int], bool],
    merge_ops: Callable[[Op, Op], None],
) -> list[int]:
    """Per op, the first one that does the same to the same classes of values; merges them.

    What stands in no tandem repeat because its layers are sorted apart (optimizers update leaf by
    leaf in the order of names) is found so. Arguments that differ in their paths' numbers, and
    what is made of arguments only, count as the same beside an operand that is the same.
    """
    maker = {r.id: (i, k) for i, op in enumerate(ops) for k, r in enumerate(op.results)}

    unmade = -1, -1

    def merge(a: int, b: int) -> None:
        """Ops, and those that make their shallow operands."""
        merge_ops(ops[a], ops[b])
        for x, y in zip(ops[a].operands, ops[b].operands, strict=True):
            if not isinstance(x, Value) or not isinstance(y, Value):
                continue
            if x.id in names and names[x.id] == names.get(y.id):
                (one, k), (other, j) = maker.get(x.id, unmade), maker.get(y.id, unmade)
                if one != other and k == j >= 0 and prints[one] == prints[other]:
                    merge(one, other)

    twins = list(range(len(ops)))
    for _ in range(3):  # what one pass merges may make others the same
        seen: dict[Hashable, int] = {}
        before = list(twins)
        for i, op in enumerate(ops):
            held = [x for x in op.operands if isinstance(x, Value)]
            if not held or twins[i] != i:
                continue
            what = (prints[i], *(names.get(r.id) for r in op.results))
            first = seen.setdefault((what, tuple(find(v.id) for v in held)), i)
            arrays = [v.id for v in held if v.type.shape]
            deep = [v for v in arrays if v not in names or shared(v)]
            for v in deep:
                if first == i:
                    loose = tuple(
                        ("named", names[x.id]) if x.id in names and x.id != v else find(x.id)
                        for x in held
                    )
                    first = seen.setdefault((what, loose), i)
            other = {x.id for x in ops[first].operands if isinstance(x, Value)}
            told = deep or arrays or [v.id for v in held]
            if any(v in other for v in told):  # two uses of one value are no repetition
                continue
            if first != i:
                merge(first, i)
                twins[i] = first
        if twins == before:
            break
    for i, twin in enumerate(twins):  # twins stand before
        twins[i] = twins[twin]
    return twins


def _fingerprints(linear: Linear, key_of: Callable[[Op], Hashable]) -> np.ndarray[Any, Any]:
    """Equal numbers for ops of equal rule and literals in one region."""
    ids: dict[Hashable, int] = {}

    def of(op: Op) -> int:
        literals = tuple(
            (i, _literal_key(x)) for i, x in enumerate(op.operands) if isinstance(x, Literal)
        )
        inner = tuple(
            (tuple(of(o) for o in r.ops), len(r.args), len(r.results)) for r in op.regions
        )
        return ids.setdefault((key_of(op), literals, inner, op.backward), len(ids))

    kinds = np.array([of(op) for op in linear.ops], dtype=np.int64)
    found: np.ndarray[Any, Any] = kinds * len(linear.regions) + np.array(linear.region)
    return found


def _with_roles(
    prints: np.ndarray[Any, Any],
    ops: Sequence[Op],
    start: int,
    stop: int,
    role: Callable[[Operand], Role],
) -> np.ndarray[Any, Any]:
    """Fingerprints of a stretch that also tell operands of different roles apart."""
    ids: dict[Hashable, int] = {}
    told = [
        ids.setdefault((int(prints[i]), *map(role, ops[i].operands)), len(ids))
        for i in range(start, stop)
    ]
    return np.array(told, dtype=np.int64)


def _alike(segment: Segment, ops: Sequence[Op], role: Callable[[Operand], Role]) -> bool:
    """True if no corresponding operands are known to be unlike."""
    for offset in range(segment.start, segment.start + segment.period):
        roles = [role(x) for x in ops[offset].operands]
        for at in range(offset + segment.period, segment.stop, segment.period):
            for one, y in zip(roles, ops[at].operands, strict=True):
                for p, q in zip(one, role(y), strict=True):
                    if p is not None and q is not None and p != q:
                        return False
    return True


def _same_role(one: Role, other: Role) -> bool:
    return any(p is not None and p == q for p, q in zip(one, other, strict=True))


def _entering(segment: Segment, ops: Sequence[Op]) -> Iterator[tuple[Value, Value]]:
    """Pairs of arrays made outside that the first repeat and another one use alike."""
    one = ops[segment.start : segment.start + segment.period]
    inside = {r.id for op in one for r in op.results}
    for offset, first in enumerate(one):
        for k in range(1, segment.repeats):
            other = ops[segment.start + k * segment.period + offset]
            for x, y in zip(first.operands, other.operands, strict=True):
                if not isinstance(x, Value) or not isinstance(y, Value):
                    continue
                if x.type.shape and x.id not in inside:
                    yield x, y


def _literal_key(literal: Literal) -> Hashable:
    """Floats by value (the decay rates of two moments differ); integers, such as the numbers
    folded into a layer's random key, by whether they are zero.
    """
    if jnp.issubdtype(literal.type.dtype, np.inexact):
        return complex(literal.value)
    return literal.is_zero()


def find_repeats(prints: np.ndarray[Any, Any], base: int = 0) -> list[Segment]:
    """Tandem repeats of a sequence of fingerprints: largest cover first, then left and right."""
    best: Segment | None = None
    for period in _periods(prints):
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
            or cover > best.period * best.repeats
            or (cover == best.period * best.repeats and period < best.period)
        ):
            best = Segment(base + int(starts[i]), period, cover // period)
    if best is None:
        return []
    left = find_repeats(prints[: best.start - base], base)
    right = find_repeats(prints[best.stop - base :], best.stop)
    return [*left, best, *right]


def _periods(prints: np.ndarray[Any, Any]) -> list[int]:
    """Distances between consecutive equal fingerprints that occur at least twice."""
    if len(prints) < 2:
        return []
    order = np.argsort(prints, kind="stable")
    same = prints[order][1:] == prints[order][:-1]
    gaps, counts = np.unique((order[1:] - order[:-1])[same], return_counts=True)
    frequent = gaps[counts >= np.minimum(2, gaps)]
    return [int(g) for g in frequent]
