"""Rows scattered into totals on a device (`ir/analysis/row_sums.py`)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Set

from partir_search.ir.analysis.row_sums import RowSum
from partir_search.ir.core import Op
from partir_search.lowering.local_ir import UNSCHEDULED, LocalOp, LocalRegion
from partir_search.lowering.local_value import LocalValue


@dataclasses.dataclass(frozen=True, slots=True)
class IntoTotals:
    """Scatters into totals of one region.

    Attributes:
      skipped: ids of local values made by no instruction: rows in zeros, and casts of the rows.
      sums: scatter and total, by id of the sum of both.
    """

    skipped: Set[int]
    sums: Mapping[int, tuple[LocalOp, LocalValue]]


def scatters_into_totals(row_sums: Mapping[int, RowSum], body: LocalRegion) -> IntoTotals:
    """Scatters into totals of a region of a scheduled program.

    A reshard or a barrier between the scatter and the addition leaves both as they are.

    Args:
      row_sums: of the module, by id of the addition.
    """
    skipped: set[int] = set()
    sums: dict[int, tuple[LocalOp, LocalValue]] = {}
    sums_before = {*body.args, *(out for x in body.steps for out in x.outs)}
    added = [x for x in body.steps if isinstance(x, LocalOp) and x.op.id in row_sums]
    for addition in added:
        row_sum = row_sums[addition.op.id]
        way = _items(body, [row_sum.scatter, *row_sum.casts])
        totals = [
            x
            for x in addition.ins
            if isinstance(x, LocalValue) and x in sums_before and x.value.id == row_sum.total
        ]
        chain = [*way, addition]
        joined = all(x.outs[0] in y.ins for x, y in itertools.pairwise(chain))
        if joined and totals and all(x.scheduling == UNSCHEDULED for x in chain):
            skipped.update(x.outs[0].id for x in way)
            sums[addition.outs[0].id] = way[0], totals[0]
    return IntoTotals(skipped, sums)


def _items(body: LocalRegion, ops: list[Op]) -> list[LocalOp]:
    """Instructions of ops of a region, in order."""
    numbers = {op.id for op in ops}
    return [x for x in body.steps if isinstance(x, LocalOp) and x.op.id in numbers]
