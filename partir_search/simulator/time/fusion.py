"""Fusion of kernels into one, so that values that pass between them are not moved.

An elementwise op or a reduction joins the kernel that makes one of its operands (the epilogue of
a dot, a chain of updates) or that reads the same operands (sums over one tensor), if both walk the
same points and its other operands exist by then: the result of a reduction exists when its kernel
ends. XLA calls these output, producer-consumer and multi-output fusion.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from partir_search.ir.core import Op, Region, Value
from partir_search.ir.rule import OpRule
from partir_search.simulator.memory.buffers import Buffers
from partir_search.simulator.memory.dtypes import Dtypes
from partir_search.simulator.memory.materialize import Materialized
from partir_search.simulator.op_kinds import is_pointwise, is_reduction
from partir_search.simulator.printing import table
from partir_search.simulator.target.traits import XlaTraits


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Fusions:
    """Kernels of one region after fusion, by op position.

    Attributes:
      leader: position of the kernel that each kernel is fused into, often itself.
      touched: ids of values that a kernel reads or writes itself. A gather of rows reads no more of
        a table than it makes: its result counts twice instead. A value that a kernel overwrites
        (see `Dtypes.softmax_in_one_kernel`) counts twice as well; of a value that a kernel updates,
        only the part counts.
      inner: per position of an op with regions, the fusions of these.
    """

    region: Region
    leader: Mapping[int, int]
    touched: Mapping[int, tuple[int, ...]]
    inner: Mapping[int, tuple[Fusions, ...]]

    def __str__(self) -> str:
        prims = [op.prim for op in self.region.ops]
        groups: dict[int, list[int]] = {}
        for at, head in self.leader.items():
            groups.setdefault(head, []).append(at)
        rows = [
            (
                head,
                " + ".join(prims[at] for at in members),
                [list(self.touched[at]) for at in members],
            )
            for head, members in groups.items()
        ]
        return table("Fusions", ("position", "ops of one kernel", "touch (value ids)"), rows)


def fuse(buffers: Buffers, rules: Sequence[OpRule], dtypes: Dtypes, traits: XlaTraits) -> Fusions:
    """Fusions of a region's kernels, and of those in regions inside of it.

    Args:
      rules: per op id.
    """
    region, stored = buffers.region, buffers.materialized
    leader, made, own = _leaders(stored, rules, dtypes, traits)
    kept = {x.id for x in region.results if isinstance(x, Value)}
    for at in stored.reads:
        if region.ops[at].regions:
            kept.update(v.id for _, v in region.ops[at].inputs())
    for at, leaves in stored.reads.items():
        for v in leaves:
            if v in made and leader[made[v]] != leader[at]:
                kept.add(v)
    touched: dict[int, tuple[int, ...]] = {}
    for at in stored.reads:
        op, read = region.ops[at], own[at]
        if rules[op.id].looks_up:
            (result,) = op.results
            small = result.type.nbytes
            read = tuple(v if stored.nbytes.get(v, 0) <= small else result.id for v in read)
        if leader[at] == at and is_reduction(rules[op.id]):
            read += tuple(v for v in read if not dtypes.softmax_in_one_kernel.get(v, True))
        written = tuple(r.id for r in op.results if r.id in kept)
        if at in buffers.aliases.updates:
            whole, part = (x.id for x in op.operands[:2] if isinstance(x, Value))
            read, written = tuple(v for v in read if v != whole), written and (part,)
        touched[at] = read + written
    inner = {
        at: tuple(fuse(part, rules, dtypes, traits) for part in parts)
        for at, parts in buffers.inner.items()
    }
    return Fusions(region, leader, touched, inner)


def _leaders(
    stored: Materialized, rules: Sequence[OpRule], dtypes: Dtypes, traits: XlaTraits
) -> tuple[dict[int, int], dict[int, int], dict[int, tuple[int, ...]]]:
    """By position of a kernel the kernel that it joins, by id of a value the kernel that makes it,
    and by position of a kernel the values that it reads and its leader did not.
    """
    region, at_once = stored.region, dtypes.softmax_in_one_kernel
    made: dict[int, int] = {}
    ready: dict[int, int] = {}  # by value, the kernel that ends before it is known; numbers sooner
    leader: dict[int, int] = {}
    walked: dict[int, int] = {}  # by leader, points
    inside: dict[int, set[int]] = {}  # by leader, values made
    outside: dict[int, set[int]] = {}  # by leader, values read
    shared: dict[int, int] = {}  # by value, the last leader to read it that others may join
    own: dict[int, tuple[int, ...]] = {}
    reduced: set[int] = set()  # values that are known when all points are walked
    for at, leaves in stored.reads.items():
        op = region.ops[at]
        rule = rules[op.id]
        joined = at
        pointwise = is_pointwise(rule)
        reduction = pointwise and not rule.elementwise
        apart = reduction and exceeds_accumulator(op, rule, traits)
        if not (op.regions or apart) and pointwise:
            points = math.prod(rule.sizes)
            near = {leader[made[v]] for v in leaves if v in made}
            near |= {shared[v] for v in leaves if v in shared}
            near -= {leader[made[v]] for v in leaves if not at_once.get(v, True) and v in made}
            if not traits.fuses_dot_epilogues:
                near = {head for head in near if is_pointwise(rules[region.ops[head].id])}
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
        if reduction and not ("max" in rule.reducers and any(v in at_once for v in leaves)):
            reduced.update(r.id for r in op.results)
        if op.regions:
            continue
        if not apart and pointwise and not rules[region.ops[joined].id].contracts:
            shared.update(dict.fromkeys(leaves, joined))
    return leader, made, own


def exceeds_accumulator(op: Op, rule: OpRule, traits: XlaTraits) -> bool:
    """Tells whether a reduction over outer dims (a bias' gradient over the batch) adds to so large
    an accumulator, until the outermost of them is walked, that it takes a kernel of its own.
    """
    dims, held = rule.operands[0], set(rule.results[0])
    if not dims or dims[-1] not in held:
        return False
    outermost = next((i for i, f in enumerate(dims) if f not in held), len(dims))
    inside = math.prod(rule.sizes[f] for f in dims[outermost:] if f in held and f >= 0)
    return inside * op.results[0].type.itemsize > traits.max_reduction_accumulator_bytes


def _points(op: Op, rule: OpRule) -> int:
    """Number of points that a kernel walks which starts with the op and admits other ops."""
    if rule.contracts or not rule.sizes:
        return math.prod(op.results[0].type.shape) if op.results else 0
    return math.prod(rule.sizes)
