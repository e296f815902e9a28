"""Search for programs on arrays of one shape that a stack could compute at once.

Muon's Newton-Schulz iterations and Shampoo's decompositions run on one parameter after the other.
On a stack of equal parameters, tiled along the leading dim, each device computes whole matrices.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from partir_search.ir.core import Module, Op
from partir_search.ir.rule import OpRule
from partir_search.passes.stacks.chains import is_heavy, updates
from partir_search.passes.stacks.fingerprint import Fingerprints
from partir_search.passes.stacks.groups import Group, find_groups
from partir_search.passes.stacks.widen import Widening

MIN_SHARE = 0.02  # least share of the program's operations in a group
MAX_GROWTH = 4 / 3  # largest ratio of arrays in a filled stack to arrays of the program


@dataclasses.dataclass(frozen=True, slots=True)
class Stack:
    """Equal programs computed once for a stack.

    Attributes:
      values: name of the first result of each program.
      size: number of arrays in the stack; beyond the programs, the first one again.
    """

    values: tuple[str, ...]
    size: int


def find_stacks(
    module: Module, rules: Sequence[OpRule], devices: int
) -> tuple[tuple[Stack, ...], tuple[Stack, ...]]:
    """Stacks that devices may share, as they are and filled to sizes that more devices divide.

    Both are () without equal programs, and the second is () if no filling pays.
    """
    if devices < 2 or not _any_heavy(module, rules):
        return (), ()
    groups = stackable(module, rules)
    total = sum(_flops(op, rules) for op in module.body.ops) if groups else 0.0
    exact, filled = [], []
    for group in groups:
        flops = len(group.members) * sum(_flops(op, rules) for op in group.ops(0))
        if flops < MIN_SHARE * total:
            continue
        names, n = names_of(group), len(group.members)
        size = _filled(n, devices)
        if math.gcd(n, devices) > 1:
            exact.append(Stack(names, n))
        if math.gcd(size, devices) > 1:
            filled.append(Stack(names, size))
    if any(stack.size > len(stack.values) for stack in filled):
        return tuple(exact), tuple(filled)
    return tuple(exact), ()


def stackable(module: Module, rules: Sequence[OpRule]) -> list[Group]:
    """Groups of equal programs, widened."""
    prints = Fingerprints(module)
    groups = list(find_groups(module.body, rules, prints))
    for group in groups:
        taken = {i for g in groups if g.region is group.region for m in g.members for i in m}
        allowed = frozenset(updates(group.region))
        Widening(group, prints, allowed, taken).run()
    return groups


def names_of(group: Group) -> tuple[str, ...]:
    """Name of the first value that leaves each program."""
    return tuple(v.name for v in group.leaving()[0])


def _any_heavy(module: Module, rules: Sequence[OpRule]) -> bool:
    ops = module.body.ops
    first = next((i for i, op in enumerate(ops) if op.backward), 0)
    heavy = [op for op in ops[first:] if not op.backward and is_heavy(op, rules)]
    return any(op.regions for op in heavy) or len(heavy) > 1


def _filled(n: int, devices: int) -> int:
    """Size of a stack of `n` arrays that the most devices divide, the smallest such."""
    sizes = range(n, math.floor(n * MAX_GROWTH) + 1)
    return max(sizes, key=lambda size: (math.gcd(size, devices), -size))


def _flops(op: Op, rules: Sequence[OpRule]) -> float:
    """Floating-point operations of an op, in its regions as often as they run."""
    rule = rules[op.id]
    if op.regions:
        runs = zip(op.regions, rule.data_flow.trip_counts, strict=True)
        return sum(n * sum(_flops(o, rules) for o in r.ops) for r, n in runs)
    return rule.flops_per_point * math.prod(rule.sizes)
