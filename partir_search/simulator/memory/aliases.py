"""Aliasing: values that share one buffer.

- A result tied to a donated argument is written into the argument's buffer.
- A loop keeps each carry in one buffer: from the initial value to the loop's result.
- An update writes into the buffer of its first operand, if the operand dies in the update.
- With `XlaTraits.in_place_elementwise` an elementwise kernel writes into the buffer of a dying
  operand.
- With `XlaTraits.epilogues_write_in_place` a dot writes into the buffer of a dying operand of the
  elementwise epilogue.
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
      unallocated: ids of values written into the buffer of an argument or a carry.
      released: by id of a value whose buffer a later value reuses, the last position at which the
        buffer counts as the value's.
      updates: positions of kernels with the second operand written into the buffer of the first.
      overwritten: by id of a dot's result, the operand of the epilogue in the same buffer, and the
        last position of the operand's own buffer if the epilogue is a kernel of its own.
    """

    region: Region
    unallocated: Set[int]
    released: Mapping[int, int]
    updates: Sequence[int]
    overwritten: Mapping[int, tuple[int, int]]

    def __str__(self) -> str:
        rows: list[tuple[object, ...]] = [
            (v, "in the buffer of an argument or a carry") for v in self.unallocated
        ]
        rows += [(v, f"buffer reused after {at}") for v, at in self.released.items()]
        rows += [(dot, f"in the buffer of value {v}") for dot, (v, _) in self.overwritten.items()]
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
    donated: frozenset[int] = frozenset(),
    carries: CarryPairs = (),
) -> Aliases:
    """Finds the shared buffers of a region's stored values.

    Args:
      rules: per op id.
      donated: ids of results written into a donated argument's buffer.
      carries: carries of the region, if the region is a loop's body.
    """
    region, made = stored.region, stored.made
    returned = {x.id for x in region.results if isinstance(x, Value)}
    dies = {v: at for v, at in stored.last.items() if v not in returned}
    released: dict[int, int] = {}
    overwritten: dict[int, tuple[int, int]] = {}
    for at in stored.reads:
        if (op := region.ops[at]).regions:
            aliased = aliased_operands(op, rules[op.id].data_flow, at, made, dies)
            released.update((v, at - 1) for v in aliased if made[v] < at)
    unallocated = donated | set(aliased_results(region, carries, rules, made, dies))
    rows = (op for op in region.ops if op.id in dtypes.row_sums)  # written into a carry
    unallocated |= {r.id for op in rows for r in op.results}
    for at in stored.reads if traits.in_place_elementwise else ():
        if any(dtypes.changed.get(v, 1.0) > 1.0 for v in stored.reads[at]):
            continue  # the storage dtype of an operand is not its type's: sizes do not match
        op = region.ops[at]
        for v in _overwritten(op, rules[op.id], stored, dies, stored.reads[at]):
            released[v] = max(at - 1, made[v])
    owned = made.keys() | {region.args[arg].id for _, arg in carries}
    if traits.epilogues_write_in_place:
        for dot, v in _written_by_epilogues(stored, rules, dies, dtypes).items():
            overwritten[dot] = v, released.get(v, dies[v])
            released[v] = max(min(released.get(v, made[dot]), made[dot] - 1), made[v])
    updates = [at for at in stored.reads if _updates(region.ops[at], rules, at, owned, dies)]
    return Aliases(region, unallocated, released, updates, overwritten)


def _updates(
    op: Op, rules: Sequence[OpRule], at: int, owned: Set[int], dies: Mapping[int, int]
) -> bool:
    """True if an op updates a slice of a stored value in place, as the value dies in the op.

    Args:
      at: the op's position.
      owned: ids of values with a buffer that the region may overwrite.
      dies: by id of a value that is not returned, the position of the last use.
    """
    if not rules[op.id].is_indexed_update:
        return False
    whole, update = op.operands[0], op.operands[rules[op.id].update_operand]
    dying = isinstance(whole, Value) and whole.id in owned and dies.get(whole.id) == at
    return dying and isinstance(update, Value)


def _written_by_epilogues(
    stored: Materialized, rules: Sequence[OpRule], dies: Mapping[int, int], dtypes: Dtypes
) -> Mapping[int, int]:
    """Values into whose buffers dots write through their epilogues.

    The only reader of a dot's result, if an elementwise kernel, is the dot's epilogue. A second
    operand of the same size, last read by the epilogue and by no kernel between, gives its buffer
    to the result.

    Args:
      dies: by id of a value that is not returned, the position of the last use.

    Returns:
      By id of the dot's result, the id of the value.
    """
    ops, made = stored.region.ops, stored.made
    readers: dict[int, list[int]] = {}
    for at, leaves in stored.reads.items():
        for v in leaves:
            readers.setdefault(v, []).append(at)
    found: dict[int, int] = {}
    for at, leaves in stored.reads.items():
        op = ops[at]
        if not rules[op.id].elementwise or len(op.results) != 1:
            continue
        size = op.results[0].type.nbytes
        dying = [
            v
            for v in leaves
            if v in made
            and dies.get(v) == at
            and stored.nbytes[v] == size
            and dtypes.changed.get(v, 1.0) == 1.0
        ]
        dots = [v for v in dying if readers[v] == [at] and rules[ops[made[v]].id].contracts]
        if len(dots) != 1:
            continue
        since = made[dots[0]]
        for v in dying:
            before = all(reader <= since or reader == at for reader in readers[v])
            if v != dots[0] and made[v] < since and before:
                found[dots[0]] = v
                break
    return found


def _overwritten(
    op: Op, rule: OpRule, stored: Materialized, dies: Mapping[int, int], leaves: tuple[int, ...]
) -> list[int]:
    """Ids of values dying in an elementwise kernel, overwritten by the kernel's results.

    Args:
      dies: by id of a value that is not returned, the position of the last use.
      leaves: ids of the stored values that the kernel reads.
    """
    if not rule.elementwise:
        return []
    made, nbytes = stored.made, stored.nbytes
    dying = [v for v in leaves if v in made and dies.get(v) == made[op.results[0].id]]
    taken: list[int] = []
    for r in op.results:
        same = (v for v in dying if nbytes[v] == r.type.nbytes and v not in taken)
        taken += list(same)[:1]
    return taken
