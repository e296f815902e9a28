"""Buffers that a loop's carries share: compilers keep a carry in one buffer in all iterations.

The initial value dies in the loop and lends its buffer to the loop's result; in the body, the next
value of a carry stands in the carry's place if nothing reads the carry later. So XLA
assigns buffers to `while` loops (a key-value cache, gradients that are added up over microbatches).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from partir_search.ir.core import Op, Region, Value
from partir_search.ir.rule import OpRule
from partir_search.rules.control_flow import flows_of

CarryPairs = Sequence[tuple[int, int]]
"""(result, argument) of a region: position of a result that is an argument of the next run."""


def carry_pairs(op: Op, region: int) -> CarryPairs:
    """The carries of one of an op's regions."""
    flows = flows_of(op).carries
    return [(result, arg) for of, result, to, arg in flows if of == to == region]


def aliased_operands(
    op: Op, at: int, made: Mapping[int, int], dies: Mapping[int, int]
) -> list[int]:
    """Ids of operands that lend their buffers to a region op's results.

    Args:
      at: the op's position.
      made / dies: by value id, where it is made and, if it is not returned, read last.
    """
    flows = flows_of(op)
    starts = {(region, arg): operand for operand, region, arg, _ in flows.enters}
    found = []
    for region, arg, _ in flows.finals:
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
    """Ids of results that take the place of the carry whose next value they are.

    Args:
      made / dies: by value id, where it is made and, if it is not returned, read last.
    """
    returned = [x.id for x in region.results if isinstance(x, Value)]
    for result, arg in carries:
        x, old = region.results[result], region.args[arg]
        if not isinstance(x, Value) or x.id not in made or old.id in returned:
            continue
        at, read = made[x.id], dies.get(old.id, -1)
        over = rules[region.ops[at].id].elementwise
        if returned.count(x.id) == 1 and (read < at or (read == at and over)):
            yield x.id
