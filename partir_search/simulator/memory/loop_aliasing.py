"""Buffers of loop carries: one buffer holds a carry in all iterations.

An initial value without later uses shares its buffer with the loop's result. In the body, the
next value of a carry shares the carry's buffer, if no op reads the carry later. XLA assigns buffers
to `while` loops in this way: key-value caches, gradients summed over microbatches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from partir_search.ir.core import Op, Region, Value
from partir_search.ir.data_flow import DataFlowEdges
from partir_search.ir.rule import OpRule

CarryPairs = Sequence[tuple[int, int]]
"""Carries of a region: (position among its results, position among its arguments)."""


def carry_pairs(edges: DataFlowEdges, region: int) -> CarryPairs:
    """Carries of region number `region` of an op, from an iteration to the next."""
    return [(result, arg) for of, result, to, arg in edges.carries if of == to == region]


def aliased_operands(
    op: Op, edges: DataFlowEdges, at: int, made: Mapping[int, int], dies: Mapping[int, int]
) -> list[int]:
    """Ids of a region op's operands in the same buffers as the op's results.

    Args:
      at: the op's position.
      made: by value id, the position of the op that makes the value.
      dies: by id of a value that is not returned, the position of the last use.
    """
    starts = {(region, arg): operand for operand, region, arg, _ in edges.inputs}
    found = []
    for region, arg, _ in edges.finals:
        x = op.operands[starts[region, arg]]
        if isinstance(x, Value) and x.id in made and dies.get(x.id) == at:
            found.append(x.id)
    return [v for v in dict.fromkeys(found) if found.count(v) == 1]


def aliased_results(
    region: Region,
    carries: CarryPairs,
    rules: Sequence[OpRule],
    made: Mapping[int, int],
    dies: Mapping[int, int],
) -> Iterator[int]:
    """Ids of a body's results written into the buffer of the carry that the result replaces.

    An elementwise op writes there, or a loop that goes on with the carry.

    Args:
      rules: per op id.
      made: by value id, the position of the op that makes the value.
      dies: by id of a value that is not returned, the position of the last use.
    """
    returned = [x.id for x in region.results if isinstance(x, Value)]
    for result, arg in carries:
        x, old = region.results[result], region.args[arg]
        if not isinstance(x, Value) or x.id not in made or old.id in returned:
            continue
        at, last_read = made[x.id], dies.get(old.id, -1)
        maker = region.ops[at]
        overwrites = rules[maker.id].elementwise or _carries(
            maker, rules[maker.id].data_flow, old, x
        )
        if returned.count(x.id) == 1 and (last_read < at or (last_read == at and overwrites)):
            yield x.id


def _carries(op: Op, edges: DataFlowEdges, first: Value, last: Value) -> bool:
    """True if a loop has `first` before, and `last` after, all iterations of one carry."""
    starts = {(region, arg): operand for operand, region, arg, _ in edges.inputs}
    return any(
        op.results[result] is last and op.operands[starts[region, arg]] is first
        for region, arg, result in edges.finals
    )
