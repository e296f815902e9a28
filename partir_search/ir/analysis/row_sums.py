"""Rows scattered into zeros and added to a carry by a loop over microbatches.

The body fills zeros, writes rows, and reads and writes the whole carry. Rows scattered into the
carry make the same sum, in the carry's type, and the body writes the rows alone. An example is the
gradient of an embedding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set

from partir_search.ir.analysis.accumulators import Accumulator
from partir_search.ir.analysis.def_use import DefUse
from partir_search.ir.analysis.reductions import is_zero
from partir_search.ir.core import Op, Value
from partir_search.ir.role import Role
from partir_search.ir.rule import OpRule


@dataclasses.dataclass(frozen=True, slots=True)
class RowSum:
    """A sum of rows.

    Attributes:
      scatter: op adding rows to zeros.
      casts: ops between the scatter and the addition, in order.
      total: id of the sum before.
    """

    scatter: Op
    casts: tuple[Op, ...]
    total: int


def find_row_sums(
    accumulators: Mapping[int, Accumulator],
    rules: Sequence[OpRule],
    uses: DefUse,
    zeros: Set[int],
) -> dict[int, RowSum]:
    """Sums of rows by id of the addition to the carry.

    No further op reads the rows in zeros.

    Args:
      accumulators: by id of the adding op.
      rules: per op id.
      zeros: ids of values known to be zero.
    """
    found: dict[int, RowSum] = {}
    for addition, accumulator in accumulators.items():
        if rules[addition].role is not Role.ADDITION:
            continue
        casts: list[Op] = []
        rows = accumulator.added[addition]
        made = uses.makers[rows]
        while made is not None and rules[made.id].role is Role.CAST:
            casts.append(made)
            (source,) = made.operands
            if not isinstance(source, Value) or uses.counts[source.id] != 1:
                made = None
                break
            made = uses.makers[source.id]
        if made is not None and adds_to_zeros(made, rules[made.id], zeros):
            (total,) = (v for v in uses.around(addition)[:2] if v != rows)
            found[addition] = RowSum(made, tuple(reversed(casts)), total)
    return found


def adds_to_zeros(op: Op, rule: OpRule, zeros: Set[int]) -> bool:
    """True for an op adding rows at indices to zeros."""
    adds = rule.role is Role.SCATTER and (0, rule.update_operand) in rule.linear
    return adds and is_zero(op.operands[0], zeros)
