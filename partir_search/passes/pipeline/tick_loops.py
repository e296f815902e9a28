"""Loops over the ticks of a pipeline, among the ops of a function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from partir_search.ir.core import Op, Operand, Value
from partir_search.ir.from_jaxpr import FunctionReader
from partir_search.ir.role import Role
from partir_search.rules.control_flow import ACCUMULATES, STAGED, TICKS
from partir_search.rules.registry import role_of


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class TickLoop:
    """A loop over ticks while a function is traced.

    Attributes:
      carries: arrays after the loop.
      staged: number of carries with a dim of stages, before the totals; None if the first loop has
        all such carries.
    """

    carries: Sequence[Any]
    staged: int | None


def read_ticks(
    reader: FunctionReader,
    run: Callable[..., tuple[list[Any], list[TickLoop]]],
    operands: Sequence[Operand],
) -> tuple[list[Op], list[Operand], int]:
    """Ops of a function with loops over ticks, and the operands in place of the results.

    The loops are marked as such. Other scans, of an entry that no microbatch changes or of a head
    for example, are not.

    Args:
      run: function of arrays to its results, and its loops over ticks.

    Returns:
      Ops, results, and the number of ops up to the last loop over ticks.
    """
    loops: list[TickLoop] = []

    def traced(*arrays: Any) -> list[Any]:
        results, loops[:] = run(*arrays)
        return [*results, *(x for loop in loops for x in loop.carries)]

    ops, found = reader.read(traced, operands)
    scans = {r: at for at, op in enumerate(ops) if role_of(op) is Role.SCAN for r in op.results}
    count = len(found) - sum(len(loop.carries) for loop in loops)
    results, carries, last = found[:count], iter(found[count:]), -1
    for loop in loops:
        # A carry that the loop leaves as it is comes from an earlier op.
        after = [next(carries) for _ in loop.carries]
        last = max(scans.get(x, -1) if isinstance(x, Value) else -1 for x in after)
        staged = {} if loop.staged is None else {STAGED: loop.staged}
        ops[last].params = {**ops[last].params, ACCUMULATES: TICKS, **staged}
        ops[last].key = None
    return ops, results, last + 1
