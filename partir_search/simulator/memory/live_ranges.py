"""Live ranges: the positions of a region at which each stored value takes memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from types import MappingProxyType

import numpy as np

from partir_search.ir.core import Region, Value
from partir_search.passes.roll.added import added_carries
from partir_search.rules.control_flow import ACCUMULATES
from partir_search.simulator.arrays import Floats, Ints
from partir_search.simulator.memory.aliases import Aliases
from partir_search.simulator.memory.dtypes import Dtypes
from partir_search.simulator.memory.materialize import Materialized
from partir_search.simulator.printing import table
from partir_search.simulator.target.traits import XlaTraits


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class LiveRanges:
    """Intervals over the op positions of one region, both ends included.

    Attributes:
      start / stop / value: [intervals] first and last position, and id of the value.
      early_stop: [intervals] last position if updates run early (`memory/early_updates.py`).
      weight: [intervals] bytes as a multiple of the value's.
    """

    region: Region
    start: Ints
    stop: Ints
    value: Ints
    weight: Floats
    early_stop: Ints

    def __str__(self) -> str:
        columns = (self.value, self.start, self.stop, self.weight)
        rows = zip(*(x.tolist() for x in columns), strict=True)
        return table("LiveRanges", ("value id", "from", "to", "times its bytes"), rows)


def live_ranges(
    stored: Materialized,
    aliases: Aliases,
    dtypes: Dtypes,
    traits: XlaTraits,
    deferred: Mapping[int, int] = MappingProxyType({}),
    early: Mapping[int, int] = MappingProxyType({}),
) -> LiveRanges:
    """Live ranges of a region's stored values without its arguments.

    Args:
      deferred: by position of a product fused into the only reader of the product, the position
        at which that kernel runs.
      early: by id of a value, the last position if updates run early.
    """
    region, made, skipped = stored.region, stored.made, set(aliases.unallocated)
    end = max(len(region.ops) - 1, 0)
    returned = {x.id for x in region.results if isinstance(x, Value)}
    ends = {**stored.last, **{v: end for v in returned if v in made}, **aliases.released}
    starts = {**made, **(_slots(stored, returned) if traits.makes_slots_at_loops else {})}
    for at, until in deferred.items():
        skipped |= {r.id for r in region.ops[at].results}
        ends.update((v, max(ends[v], until)) for v in stored.reads[at] if v in ends)
    live = [(starts[v], ends[v], v) for v in made if v not in skipped]
    weight = [dtypes.changed.get(v, 1.0) for v in made if v not in skipped]
    wide = [(made[v], stored.last_forward[v], v) for v in made if v in dtypes.wide_forward]
    in_two_forms = [v for v in made if v in dtypes.workspace]
    working = [(made[v], made[v], v) for v in in_two_forms]
    columns = np.array(live + wide + working, dtype=np.int64).reshape(-1, 3)
    besides = [_workspace(v, stored, ends, dtypes) for v in in_two_forms]
    weights = np.array(weight + [2.0] * len(wide) + besides)
    start, stop, value = columns.T
    early_stop = stop.copy()
    early_stop[: len(live)] = [min(until, early.get(v, until)) for _, until, v in live]
    return LiveRanges(region, start, stop, value, weights, early_stop)


def _workspace(v: int, stored: Materialized, ends: Mapping[int, int], dtypes: Dtypes) -> float:
    """Bytes live while a transform or a scatter runs, beside the result `v` and the operands.

    An operand without further readers makes room: a transform's first products read it.

    Args:
      ends: by id of a stored value, the last position of its live range.
    """
    at = stored.made[v]
    dying = (s for s in stored.reads[at] if s in stored.made and ends.get(s) == at)
    freed = sum(stored.nbytes[s] * dtypes.changed.get(s, 1.0) for s in dying)
    return max(0.0, dtypes.workspace[v] - freed / stored.nbytes[v])


def _slots(stored: Materialized, returned: Set[int]) -> dict[int, int]:
    """By id of a value made of no stored value (zeros), the first loop that writes over parts.

    See `XlaTraits.makes_slots_at_loops`.

    Args:
      returned: ids of the region's results.
    """
    found: dict[int, int] = {}
    for at in sorted(stored.reads):
        op = stored.region.ops[at]
        if not op.params.get(ACCUMULATES):
            continue
        added = {carry.number for carry in added_carries(op)}
        consts, count = int(op.params["num_consts"]), int(op.params["num_carry"])
        for number, x in enumerate(op.operands[consts : consts + count]):
            if not isinstance(x, Value) or x.id not in stored.made or x.id in returned:
                continue
            if number not in added and not stored.reads[stored.made[x.id]]:
                found.setdefault(x.id, at)
    return found
