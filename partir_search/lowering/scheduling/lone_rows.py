"""Layouts of single rows: the class token of a sequence, a token of time or of a label.

XLA:TPU lays out an array [b, 1, d] as [1, b, d], or as [1, d, b] if an all_gather made d of tiles
that fill no lanes. From a concatenation, a pad or a slice this order spreads to the array
[b, t, d] of all rows and from there to sums and gradients of all layers: copies around attention,
or arrays with b in the lanes, of eight times their bytes for b = 16 (docs/evidence/traits.md:
`pins_lone_rows`). The pass pins single rows to the order of their dims. No larger array is pinned.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Set

from partir_search.ir.core import Shape
from partir_search.ir.role import Role
from partir_search.lowering.local_ir import LocalOp, LocalProgram, LocalRegion
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.scheduling.marks import Marks, mark_regions
from partir_search.lowering.traits import LoweringTraits


def pin_lone_rows(program: LocalProgram, traits: LoweringTraits) -> LocalProgram:
    """Pins single rows of sequences to the order of their dims."""
    if not traits.pins_lone_rows:
        return program

    def find(region: LocalRegion, _: Set[int]) -> Marks:
        return {
            at: {"in_order": tuple(rows)} for at, rows in lone_rows(program, region, traits).items()
        }

    return mark_regions(program, find)


def lone_rows(
    program: LocalProgram, region: LocalRegion, traits: LoweringTraits
) -> dict[int, list[LocalValue]]:
    """Single rows put into arrays of many rows, or cut out of such, by position of the making
    instruction in the region.

    Arrays with half of their rows or more put in or cut out alone, as in a loop over the rows
    that is written out, are left to the compiler.
    """
    made = {local.id: at for at, item in enumerate(region.steps) for local in item.outs}
    moved = collections.defaultdict[Shape, list[LocalValue]](list)  # by shape of the larger array
    for item in region.steps:
        if isinstance(item, LocalOp):
            for row, shape in _moved_alone(program, item, traits):
                moved[shape].append(row)
    found: dict[int, list[LocalValue]] = {}
    for shape, rows in moved.items():
        if 2 * len(rows) < shape[-2]:
            for row in rows:
                if row.id in made and row not in (pinned := found.setdefault(made[row.id], [])):
                    pinned.append(row)
    return found


def _moved_alone(
    program: LocalProgram, item: LocalOp, traits: LoweringTraits
) -> Iterator[tuple[LocalValue, Shape]]:
    """Single rows that an op puts into an array or cuts out of an array, with the array's shape."""
    rule = program.partition.rules[item.op.id]
    if not rule.moves or rule.is_table_lookup or rule.role is Role.BROADCAST or item.regions:
        return
    for out in item.outs:
        for x in item.ins:
            if isinstance(x, LocalValue):
                row, whole = sorted((x, out), key=lambda each: each.shape[-2:-1])
                if _is_row_of(row.shape, whole.shape, traits):
                    yield row, whole.shape


def _is_row_of(row: Shape, whole: Shape, traits: LoweringTraits) -> bool:
    """True for [b, 1, d] and [b, t, d], where b > 1 and [t, d] fills tiles."""
    return (
        len(row) == len(whole) > 2
        and row[:-2] == whole[:-2]
        and math.prod(row[:-2]) > 1
        and row[-2] == 1
        and row[-1] == whole[-1]
        and row[-1] % traits.row_major_lane_elements == 0
        and whole[-2] >= traits.row_major_sublane_elements
    )
