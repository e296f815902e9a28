"""Fusion of kernels into one, so that values that pass between them are not moved.

An elementwise op or a reduction joins the kernel that makes one of its operands (the epilogue of
a matrix product, a chain of updates) or that reads the same operands (sums over one tensor), if
both walk the same points and its other operands are there by then: what a kernel reduces is there
when it ends. XLA calls these output, producer-consumer and multi-output fusion. Found to matter by
comparing with XLA:TPU's own cycles (`experiments.truth`): unfused, kernels that are not products
count half as much again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from partir_search.ir.core import Op, Region, Value
from partir_search.ir.rule import OpRule
from partir_search.simulator.target.traits import XlaTraits


@dataclasses.dataclass(frozen=True, slots=True)
class Fused:
    """Kernels of one region after fusion, by op position.

    Attributes:
      leader: the kernel that each kernel has become part of, often itself.
      touched: ids of values that a kernel reads or writes itself. A look-up reads no more of a
        table than it makes: it has its result twice instead. What a kernel writes over (see
        `at_once` below) is there twice as well; of what it writes into, only the part is there.
    """

    leader: Mapping[int, int]
    touched: Mapping[int, tuple[int, ...]]


def fuse(
    region: Region,
    rules: Sequence[OpRule],
    reads: Mapping[int, tuple[int, ...]],
    nbytes: Mapping[int, int],
    traits: XlaTraits,
    at_once: Mapping[int, bool] = MappingProxyType({}),
    in_place: Collection[int] = (),
) -> Fused:
    """Fuses the kernels of a region.

    Args:
      reads: per position of a kernel, the stored values that it reads.
      nbytes: by value id; of what other regions make nothing need be known.
      traits: of the target's compiler.
      at_once: values of which a maximum is known where it is taken, so that what needs it can be in
        the same kernel: by whether that is the kernel which makes the value. If not, what is made
        of it is stored in its place.
      in_place: positions of ops that write a part into their first operand where it is stored.
    """
    made: dict[int, int] = {}  # by value, the kernel that makes it
    ready: dict[int, int] = {}  # by value, after which kernel: a number as soon as it can be
    leader: dict[int, int] = {}
    walked: dict[int, int] = {}  # by leader, points
    inside: dict[int, set[int]] = {}  # by leader, values made
    outside: dict[int, set[int]] = {}  # by leader, values read
    shared: dict[int, int] = {}  # by value, the last leader to read it that may be joined so
    own: dict[int, tuple[int, ...]] = {}
    reduced: set[int] = set()  # values that are known when all points are walked
    kept = {x.id for x in region.results if isinstance(x, Value)}
    for at, leaves in reads.items():
        op = region.ops[at]
        rule = rules[op.id]
        joined = at
        apart = reduces(rule) and _keeps_much(op, rule, traits.max_reduction_accumulator_bytes)
        if not (op.regions or apart) and joins(rule):
            points = math.prod(rule.sizes)
            near = {leader[made[v]] for v in leaves if v in made}
            near |= {shared[v] for v in leaves if v in shared}
            near -= {leader[made[v]] for v in leaves if not at_once.get(v, True) and v in made}
            if not traits.fuses_dot_epilogues:
                near = {head for head in near if joins(rules[region.ops[head].id])}
            for head in sorted(near, reverse=True):
                if walked[head] == points and all(
                    ready.get(v, -1) < head or (v in inside[head] and v not in reduced)
                    for v in leaves
                ):
                    joined = head
                    break
        leader[at] = joined
        if joined == at:
            walked[at] = _points(op, rule)
            inside[at], outside[at] = set(), set()
        own[at] = tuple(v for v in leaves if v not in inside[joined] | outside[joined])
        outside[joined].update(own[at])
        inside[joined].update(r.id for r in op.results)
        first = max((ready.get(v, -1) for v in leaves), default=-1)
        for r in op.results:
            made[r.id] = at
            ready[r.id] = at if r.type.shape or op.regions else first
        if reduces(rule) and not ("max" in rule.reducers and any(v in at_once for v in leaves)):
            reduced.update(r.id for r in op.results)
        if op.regions:
            kept.update(v.id for _, v in op.inputs())
        elif not (apart or rules[region.ops[joined].id].contracts) and joins(rule):
            shared.update(dict.fromkeys(leaves, joined))
    for at, leaves in reads.items():
        for v in leaves:
            if v in made and leader[made[v]] != leader[at]:
                kept.add(v)
    touched: dict[int, tuple[int, ...]] = {}
    for at in reads:
        op, read = region.ops[at], own[at]
        if rules[op.id].looks_up:
            (result,) = op.results
            read = tuple(v if nbytes.get(v, 0) <= result.type.nbytes else result.id for v in read)
        if leader[at] == at and reduces(rules[op.id]):
            read += tuple(v for v in read if not at_once.get(v, True))
        written = tuple(r.id for r in op.results if r.id in kept)
        if at in in_place:
            whole, part = (x.id for x in op.operands[:2] if isinstance(x, Value))
            read, written = tuple(v for v in read if v != whole), written and (part,)
        touched[at] = read + written
    return Fused(leader, touched)


def joins(rule: OpRule) -> bool:
    """True if an op walks its operands point by point: elementwise, or a plain reduction."""
    if rule.elementwise:
        return True
    return bool(
        rule.sizes
        and not (rule.contracts or rule.blocked or rule.opaque or rule.local)
        and any(rule.reducers)
    )


def reduces(rule: OpRule) -> bool:
    """True for a plain reduction."""
    return not rule.elementwise and joins(rule)


def _keeps_much(op: Op, rule: OpRule, most: int) -> bool:
    """Tells whether a reduction over outer dims (a bias' gradient over the batch) adds to so large
    an accumulator, until the outermost of them is walked, that it takes a kernel of its own.
    """
    dims, held = rule.operands[0], set(rule.results[0])
    if not dims or dims[-1] not in held:
        return False
    outermost = next((i for i, f in enumerate(dims) if f not in held), len(dims))
    inside = math.prod(rule.sizes[f] for f in dims[outermost:] if f in held and f >= 0)
    return inside * op.results[0].type.itemsize > most


def _points(op: Op, rule: OpRule) -> int:
    """Number of points that a kernel walks which starts with the op and admits other ops."""
    if rule.contracts or not rule.sizes:
        return math.prod(op.results[0].type.shape) if op.results else 0
    return math.prod(rule.sizes)
