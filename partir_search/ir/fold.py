"""Folding: one representative for ops that repeat (a layer's forward, backward, optimizer update).

Tandem repeats of equation fingerprints are found in the program's op list; values at equal
positions of the repeats become one class (results, operands, hence arguments and loop carries).
The quotient is a module again, a few hundred ops at any depth, on which search works. Tried
against colour refinement, which mixes unlike layers or stops folding as depth grows.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from partir_search.ir.core import Literal, Module, Op, Operand, Region, Value

SHORT = 6  # periods below this many ops occur by chance (two adjacent broadcasts, say)
_PATH_NUMBER = re.compile(r"\d+")


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
      positions: original body position of each op of the quotient's body.
      op_of: quotient body position per original body position.
    """

    original: Module
    module: Module
    class_of: list[int]
    positions: list[int]
    op_of: list[int]


def fold(
    module: Module,
    key_of: Callable[[Op], Hashable],
    marks: Mapping[int, Hashable] = MappingProxyType({}),
) -> Folded:
    """Folds the repeats of `module`.

    Args:
      key_of: gives equal keys to ops of equal rule.
      marks: by value id; values with different marks are not merged.
    """
    names = {
        v.id: _PATH_NUMBER.sub("#", p)
        for v, p in zip(module.body.args, module.arg_paths, strict=True)
    }
    prints = _fingerprints(module, key_of)
    named = _with_names(prints, module.body.ops, names, marks)
    parent = list(range(len(module.values)))

    def find(x: int) -> int:
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    def merge(a: Operand, b: Operand) -> None:
        if isinstance(a, Value) and isinstance(b, Value):
            x, y = find(a.id), find(b.id)
            if x != y:
                parent[max(x, y)] = min(x, y)

    def merge_ops(a: Op, b: Op) -> None:
        for x, y in zip(a.operands, b.operands, strict=True):
            merge(x, y)
        for x, y in zip(a.results, b.results, strict=True):
            merge(x, y)
        for r, s in zip(a.regions, b.regions, strict=True):
            for x, y in zip((*r.args, *r.results), (*s.args, *s.results), strict=True):
                merge(x, y)
            for p, q in zip(r.ops, s.ops, strict=True):
                merge_ops(p, q)

    ops = module.body.ops

    def merges_nothing_new(segment: Segment) -> bool:
        """Short periods also occur by chance: they may only repeat what longer ones have merged
        already.
        """
        one = ops[segment.start : segment.start + segment.period]
        made = {r.id for op in one for r in op.results}
        for offset, first in enumerate(one):
            for k in range(1, segment.repeats):
                other = ops[segment.start + k * segment.period + offset]
                for x, y in zip(first.operands, other.operands, strict=True):
                    if not isinstance(x, Value) or not isinstance(y, Value) or not x.type.shape:
                        continue
                    if x.id not in made and find(x.id) != find(y.id):
                        return False
        return True

    segments: list[Segment] = []
    found: list[Segment] = []
    for segment in find_repeats(prints):
        if _alike(segment, ops, names, marks):
            found.append(segment)
        else:
            found += find_repeats(named[segment.start : segment.stop], segment.start)
    for segment in sorted(found, key=lambda s: (-s.period, s.start)):
        weight = sum(map(_weight, ops[segment.start : segment.start + segment.period]))
        if weight >= SHORT or merges_nothing_new(segment):
            segments.append(segment)
            for offset in range(segment.period):
                first = ops[segment.start + offset]
                for k in range(1, segment.repeats):
                    merge_ops(first, ops[segment.start + k * segment.period + offset])
    segments.sort(key=lambda s: s.start)
    chosen: list[int] = []  # original positions
    op_of = [-1] * len(ops)
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
    shallow = {v: (name, marks.get(v)) for v, name in names.items()}
    twins = _twins([ops[i] for i in chosen], [named[i] for i in chosen], shallow, find, merge_ops)
    kept = [q for q, twin in enumerate(twins) if twin == q]
    place = {q: n for n, q in enumerate(kept)}
    op_of = [place[twins[q]] for q in op_of]
    counts = np.bincount(op_of, minlength=len(kept)).tolist()
    chosen = [chosen[q] for q in kept]
    pairs = [(ops[i], n) for i, n in zip(chosen, counts, strict=True)]
    quotient, class_of = _quotient(module, pairs, find)
    return Folded(module, quotient, class_of, chosen, op_of)


def _twins(
    ops: Sequence[Op],
    prints: Sequence[int],
    arguments: Mapping[int, Hashable],
    find: Callable[[int], int],
    merge_ops: Callable[[Op, Op], None],
) -> list[int]:
    """Per op, the first one that does the same to the same classes of values; merges them.

    What stands in no tandem repeat because its layers are sorted apart (optimizers update leaf by
    leaf in the order of names) is found so. Arguments that differ in their paths' numbers, and
    what is made of arguments only, count as the same beside an operand that is the same.
    """
    maker = {r.id: i for i, op in enumerate(ops) for r in op.results}
    shallow: dict[int, Hashable] = dict(arguments)  # by value id: made of arguments only
    for i, op in enumerate(ops):
        held = [x.id for x in op.operands if isinstance(x, Value)]
        if held and all(v in shallow for v in held):
            key = (int(prints[i]), *(shallow[v] for v in held))
            shallow.update({r.id: (key, k) for k, r in enumerate(op.results)})

    def merge(a: int, b: int) -> None:
        """Ops, and those that make their shallow operands."""
        merge_ops(ops[a], ops[b])
        for x, y in zip(ops[a].operands, ops[b].operands, strict=True):
            if not isinstance(x, Value) or not isinstance(y, Value):
                continue
            if x.id in shallow and shallow[x.id] == shallow.get(y.id):
                one, other = maker.get(x.id), maker.get(y.id)
                if one is not None and other is not None and one != other:
                    merge(one, other)

    twins = list(range(len(ops)))
    for _ in range(3):  # what one pass merges may make others the same
        seen: dict[Hashable, int] = {}
        before = list(twins)
        for i, op in enumerate(ops):
            held = [x.id for x in op.operands if isinstance(x, Value)]
            if not held or twins[i] != i:
                continue
            exact = tuple(find(v) for v in held)
            first = seen.setdefault((int(prints[i]), exact), i)
            deep = [v for v in held if v not in shallow]
            if first == i and deep:
                loose = tuple(shallow.get(v, find(v)) for v in held)
                first = seen.setdefault((int(prints[i]), "loose", loose), i)
                other = {x.id for x in ops[first].operands if isinstance(x, Value)}
                if any(v in other for v in deep):  # two uses of one value are no repetition
                    continue
            if first != i:
                merge(first, i)
                twins[i] = first
        if twins == before:
            break
    for i, twin in enumerate(twins):  # twins stand before
        twins[i] = twins[twin]
    return twins


def _fingerprints(module: Module, key_of: Callable[[Op], Hashable]) -> np.ndarray[Any, Any]:
    """Equal numbers for ops of equal rule and literals."""
    ids: dict[Hashable, int] = {}

    def of(op: Op) -> int:
        literals = tuple(
            (i, _literal_key(x)) for i, x in enumerate(op.operands) if isinstance(x, Literal)
        )
        inner = tuple(
            (tuple(of(o) for o in r.ops), len(r.args), len(r.results)) for r in op.regions
        )
        return ids.setdefault((key_of(op), literals, inner, op.backward), len(ids))

    return np.array([of(op) for op in module.body.ops], dtype=np.int64)


def _with_names(
    prints: np.ndarray[Any, Any],
    ops: Sequence[Op],
    names: Mapping[int, str],
    marks: Mapping[int, Hashable],
) -> np.ndarray[Any, Any]:
    """Fingerprints that also tell operands of different names or marks apart."""
    ids: dict[Hashable, int] = {}

    def of(fingerprint: int, op: Op) -> int:
        given = tuple(
            (i, names.get(x.id), marks.get(x.id))
            for i, x in enumerate(op.operands)
            if isinstance(x, Value) and (x.id in names or x.id in marks)
        )
        return ids.setdefault((fingerprint, given), len(ids))

    return np.array([of(*pair) for pair in zip(prints.tolist(), ops, strict=True)], dtype=np.int64)


def _alike(
    segment: Segment, ops: Sequence[Op], names: Mapping[int, str], marks: Mapping[int, Hashable]
) -> bool:
    """Whether arguments correspond by path in all repeats, and no marks differ."""
    for offset in range(segment.start, segment.start + segment.period):
        for at in range(offset + segment.period, segment.stop, segment.period):
            for x, y in zip(ops[offset].operands, ops[at].operands, strict=True):
                if isinstance(x, Value) and isinstance(y, Value):
                    if x.id in names and y.id in names and names[x.id] != names[y.id]:
                        return False
                    if marks.get(x.id) != marks.get(y.id):
                        return False
    return True


def _weight(op: Op) -> int:
    """The op and all ops inside it."""
    return 1 + sum(_weight(o) for region in op.regions for o in region.ops)


def _literal_key(literal: Literal) -> Hashable:
    """Floats by value (the decay rates of two moments differ); integers, such as the numbers
    folded into a layer's random key, by whether they are zero.
    """
    if np.issubdtype(literal.type.dtype, np.inexact):
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


def _quotient(
    module: Module, chosen: Sequence[tuple[Op, int]], find: Callable[[int], int]
) -> tuple[Module, list[int]]:
    values: list[Value] = []
    ops: list[Op] = []
    fresh: dict[int, Value] = {}

    def value(old: Value) -> Value:
        root = find(old.id)
        if root not in fresh:
            source = module.values[root]
            fresh[root] = Value(len(values), source.type, source.name)
            values.append(fresh[root])
        return fresh[root]

    def operand(old: Operand) -> Operand:
        return value(old) if isinstance(old, Value) else old

    def copy_op(old: Op, count: int) -> Op:
        new = dataclasses.replace(old, id=len(ops), count=count)
        ops.append(new)
        new.operands = tuple(operand(x) for x in old.operands)
        new.regions = tuple(copy_region(r, count) for r in old.regions)
        new.results = tuple(value(x) for x in old.results)
        return new

    def copy_region(old: Region, count: int) -> Region:
        args = tuple(value(x) for x in old.args)
        inner = tuple(copy_op(o, count) for o in old.ops)
        return Region(args, inner, tuple(operand(x) for x in old.results))

    args = [value(v) for v in module.body.args]
    constants = {value(module.values[i]).id: a for i, a in module.constants.items()}
    body_ops = tuple(copy_op(op, n) for op, n in chosen)
    all_results = [operand(x) for x in module.body.results]
    first = {v.id: i for i, v in reversed(list(enumerate(args)))}
    place: dict[int, int] = {}  # of each distinct result
    results: list[Operand] = []
    renumbered: list[int] = []
    for x in all_results:
        if id(x) not in place:
            place[id(x)] = len(results)
            results.append(x)
        renumbered.append(place[id(x)])
    ties = dict.fromkeys((first[args[a].id], renumbered[r]) for a, r in module.ties)
    unique = list(dict.fromkeys(first[v.id] for v in args))
    renumber = {old: new for new, old in enumerate(unique)}
    quotient = Module(
        name=module.name,
        body=Region(tuple(args[i] for i in unique), body_ops, tuple(results)),
        values=values,
        ops=ops,
        constants=constants,
        arg_paths=tuple(module.arg_paths[i] for i in unique),
        result_paths=tuple(module.result_paths[renumbered.index(r)] for r in range(len(results))),
        ties=tuple((renumber[a], r) for a, r in ties),
        donated=frozenset(renumber[first[args[i].id]] for i in module.donated),
    )
    class_of = [fresh[find(v.id)].id if find(v.id) in fresh else -1 for v in module.values]
    return quotient, class_of
