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
      segments: the repeats found, in program order.
      class_of: quotient value id per original value id (-1: inside a repeat that was dropped).
      positions: original body position of each op of the quotient's body.
      op_of: quotient body position per original body position.
    """

    original: Module
    module: Module
    segments: tuple[Segment, ...]
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
    prints = _fingerprints(module, key_of)
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
    paths = {
        v.id: _PATH_NUMBER.sub("#", p)
        for v, p in zip(module.body.args, module.arg_paths, strict=True)
    }

    def agree(segment: Segment) -> bool:
        """Whether the repeats may be one: arguments correspond by path, and short periods
        (which also occur by chance) only repeat what longer ones have merged already.
        """
        one = ops[segment.start : segment.start + segment.period]
        short = sum(map(_weight, one)) < SHORT
        for offset, first in enumerate(one):
            for k in range(1, segment.repeats):
                other = ops[segment.start + k * segment.period + offset]
                for x, y in zip(first.operands, other.operands, strict=True):
                    if isinstance(x, Value) and isinstance(y, Value):
                        both = x.id in paths and y.id in paths
                        if both and paths[x.id] != paths[y.id]:
                            return False
                        if marks.get(x.id) != marks.get(y.id):
                            return False
                        if short and x.type.shape and find(x.id) != find(y.id):
                            return False
        return True

    segments: list[Segment] = []
    for segment in sorted(find_repeats(prints), key=lambda s: (-s.period, s.start)):
        if agree(segment):
            segments.append(segment)
            for offset in range(segment.period):
                first = ops[segment.start + offset]
                for k in range(1, segment.repeats):
                    merge_ops(first, ops[segment.start + k * segment.period + offset])
    segments.sort(key=lambda s: s.start)
    chosen: list[tuple[int, int]] = []  # (original position, count)
    op_of = [-1] * len(ops)
    at = 0
    for segment in segments:
        for i in range(at, segment.start):
            op_of[i] = len(chosen)
            chosen.append((i, 1))
        middle = segment.start + (segment.repeats // 2) * segment.period
        for offset in range(segment.period):
            for k in range(segment.repeats):
                op_of[segment.start + k * segment.period + offset] = len(chosen)
            chosen.append((middle + offset, segment.repeats))
        at = segment.stop
    for i in range(at, len(ops)):
        op_of[i] = len(chosen)
        chosen.append((i, 1))
    quotient, class_of = _quotient(module, [(ops[i], n) for i, n in chosen], find)
    return Folded(module, quotient, tuple(segments), class_of, [i for i, _ in chosen], op_of)


def _fingerprints(module: Module, key_of: Callable[[Op], Hashable]) -> np.ndarray[Any, Any]:
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
