"""Chains: connected groups of heavy ops of a region, and of the ops between them.

An op is heavy if it contracts or decomposes matrices, or runs a region with such an op. A chain
holds every op on a path between two of its heavy ops: no chain depends on another at one level.
Region ops that join chains (a `cond` around the update of all preconditioners) are taken as
separators: ops behind one have a higher level.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Container, Sequence

from partir_search.ir.analysis.union_find import UnionFind
from partir_search.ir.core import Op, Region
from partir_search.ir.kind import Kind
from partir_search.ir.rule import OpRule

HEAVY = frozenset({Kind.CONTRACTION, Kind.DECOMPOSITION, Kind.KERNEL})


@dataclasses.dataclass(frozen=True, slots=True)
class Chain:
    """A chain.

    Attributes:
      places: positions of the ops in their region, in order.
      level: number of separators before the ops, at most, on any path.
    """

    places: tuple[int, ...]
    level: int


def is_heavy(op: Op, rules: Sequence[OpRule]) -> bool:
    """True for an op on matrix units, a decomposition, or a region op with one inside."""
    if not op.regions:
        return rules[op.id].kind in HEAVY
    return any(is_heavy(o, rules) for r in op.regions for o in r.ops)


def updates(region: Region) -> list[int]:
    """Positions of the ops after the gradients: the ops of an optimizer.

    Without gradients in the region, all positions.
    """
    ops = region.ops
    first = next((i for i, op in enumerate(ops) if op.backward), -1)
    if first < 0:
        return list(range(len(ops)))
    behind: set[int] = set()  # ids of values that a gradient depends on
    found = []
    for i in range(len(ops) - 1, -1, -1):
        op = ops[i]
        if op.backward or any(r.id in behind for r in op.results):
            behind.update(v.id for _, v in op.inputs())
        elif i > first:
            found.append(i)
    return found[::-1]


def find_chains(
    region: Region, allowed: Sequence[int], heavy: Container[int], separators: Container[int]
) -> list[Chain]:
    """Chains of a region, in order of their first ops.

    Args:
      allowed: positions of ops in chains, in order; every user of an allowed op is allowed.
      heavy: positions of heavy ops.
      separators: positions of region ops in no chain.
    """
    ops = region.ops
    maker = {r.id: i for i in allowed for r in ops[i].results}
    before: dict[int, list[int]] = {
        i: [maker[v.id] for _, v in ops[i].inputs() if v.id in maker] for i in allowed
    }
    level: dict[int, int] = {}
    behind: set[int] = set()  # a heavy op, or one behind a heavy op of its level
    for i in allowed:
        level[i] = max((level[m] + (m in separators) for m in before[i]), default=0)
        near = any(level[m] == level[i] and m in behind for m in before[i])
        if i not in separators and (i in heavy or near):
            behind.add(i)
    ahead: set[int] = set()
    for i in reversed(allowed):
        if i not in separators and i in heavy:
            ahead.add(i)
        if i in ahead:
            ahead.update(m for m in before[i] if level[m] == level[i] and m not in separators)
    inside = [i for i in allowed if i in behind and i in ahead]
    members, groups = set(inside), UnionFind(len(ops))
    for i in inside:
        for m in before[i]:
            if m in members and level[m] == level[i]:
                groups.merge(m, i)
    found: dict[int, list[int]] = collections.defaultdict(list)
    for i in inside:
        found[groups.find(i)].append(i)
    return [Chain(tuple(places), level[places[0]]) for places in found.values()]
