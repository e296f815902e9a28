"""Aliasing: values that share a buffer with another one.

A donated argument lends its buffer to the result that takes its place. A loop keeps each carry in
one buffer, and what the loop begins with lends its buffer to the loop's result. An update writes
into the buffer of an operand that dies. On targets with `XlaTraits.in_place_elementwise` an
elementwise kernel takes the buffer of an operand that dies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set

from partir_search.ir.core import Op, Region, Value
from partir_search.ir.rule import OpRule
from partir_search.simulator.memory.dtypes import Dtypes
from partir_search.simulator.memory.loop_aliasing import (
    CarryPairs,
    aliased_operands,
    aliased_results,
)
from partir_search.simulator.memory.materialize import Materialized
from partir_search.simulator.printing import table
from partir_search.simulator.target.traits import XlaTraits


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Aliases:
    """Shared buffers of one region.

    Attributes:
      free: ids of values without a buffer of their own.
      released: by id of a value whose buffer another one takes, the last position at which the
        value counts.
      updates: positions of kernels that write a part into their first operand where it is stored.
    """

    region: Region
    free: Set[int]
    released: Mapping[int, int]
    updates: Sequence[int]

    def __str__(self) -> str:
        rows: list[tuple[object, ...]] = [(v, "has the buffer of another value") for v in self.free]
        rows += [(v, f"gives its buffer on after {at}") for v, at in self.released.items()]
        rows += [
            (op.results[0].id, f"writes into {op.operands[0]}")
            for op in map(self.region.ops.__getitem__, self.updates)
        ]
        return table("Aliases", ("value id", "buffer"), rows)


def alias(
    stored: Materialized,
    rules: Sequence[OpRule],
    dtypes: Dtypes,
    traits: XlaTraits,
    free: frozenset[int] = frozenset(),
    carries: CarryPairs = (),
) -> Aliases:
    """Shared buffers of a region's stored values.

    Args:
      free: ids of results that land in a donated argument's buffer.
      carries: pairs of the region's results and arguments, if the region is a loop's body.
    """
    region, made = stored.region, stored.made
    returned = {x.id for x in region.results if isinstance(x, Value)}
    dies = {v: at for v, at in stored.last.items() if v not in returned}
    released: dict[int, int] = {}
    for at in stored.reads:
        if region.ops[at].regions:
            lent = aliased_operands(region.ops[at], at, made, dies)
            released.update((v, at - 1) for v in lent if made[v] < at)
    free |= set(aliased_results(region, carries, rules, made, dies))
    for at in stored.reads if traits.in_place_elementwise else ():
        if any(dtypes.changed.get(v, 1.0) > 1.0 for v in stored.reads[at]):
            continue
        op = region.ops[at]
        for v in _overwritten(op, rules[op.id], stored, dies, stored.reads[at]):
            released[v] = max(at - 1, made[v])
    owned = made.keys() | {region.args[arg].id for _, arg in carries}
    updates = [at for at in stored.reads if _updates(region.ops[at], rules, at, owned, dies)]
    return Aliases(region, free, released, updates)


def _updates(
    op: Op, rules: Sequence[OpRule], at: int, owned: Set[int], dies: Mapping[int, int]
) -> bool:
    """True if an op writes a part into a stored value that dies in it."""
    if not rules[op.id].writes_into:
        return False
    whole, part = op.operands[:2]
    held = isinstance(whole, Value) and whole.id in owned and dies.get(whole.id) == at
    return held and isinstance(part, Value)


def _overwritten(
    op: Op, rule: OpRule, stored: Materialized, dies: Mapping[int, int], leaves: tuple[int, ...]
) -> list[int]:
    """Ids of values that die in an elementwise kernel and whose buffers its results take."""
    if not rule.elementwise:
        return []
    made, nbytes = stored.made, stored.nbytes
    dying = [v for v in leaves if v in made and dies.get(v) == made[op.results[0].id]]
    taken: list[int] = []
    for r in op.results:
        same = (v for v in dying if nbytes[v] == r.type.nbytes and v not in taken)
        taken += list(same)[:1]
    return taken
