"""Trip counts of `while` loops with a counter: `i < 10` for an `i` from 0 in steps of 1.

A loop with a further condition (`(i < 10) & (error > tol)`) runs at most the counter's number of
times.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from partir_search.ir.core import Literal, Op, Operand, Value

_FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_COPIES = frozenset({"broadcast_in_dim", "convert_element_type", "copy", "reshape", "squeeze"})


@dataclasses.dataclass(frozen=True, slots=True)
class Counted:
    """Bound on the iterations of a loop; `exact` if no further condition can end it."""

    most: int
    exact: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Iteration:
    """A loop searched for counters.

    Attributes:
      predicate: True while the loop continues; result of an op in `deciding`.
      carries: carries read by `deciding`.
      old / new: carries before and after an iteration of `body`.
      starts: carries before the first iteration.
      before: ops before the loop.
      outside: operands passed to the loop, by `id` of its constants.
    """

    predicate: Operand
    deciding: Sequence[Op]
    carries: Sequence[Operand]
    old: Sequence[Value]
    new: Sequence[Operand]
    body: Sequence[Op]
    starts: Sequence[Operand]
    before: Sequence[Op]
    outside: Mapping[int, Operand]


def counted_while(op: Op, before: Sequence[Op]) -> Counted | None:
    """Trip-count bound of a `while` with a scalar predicate.

    Args:
      before: ops before the loop.
    """
    (decide, body), operands = op.regions, op.operands
    asked, consts = op.params["cond_nconsts"], op.params["body_nconsts"]
    outside = dict(zip(map(id, decide.args[:asked]), operands, strict=False))
    return counted(
        Iteration(
            decide.results[0],
            decide.ops,
            decide.args[asked:],
            body.args[consts:],
            body.results,
            body.ops,
            operands[asked + consts :],
            before,
            outside,
        )
    )


def counted(loop: Iteration) -> Counted | None:
    """Smallest bound on iterations over the conditions joined by `and`; None without any bound."""
    deciding, body = _makers(loop.deciding), _makers(loop.body)
    place = {id(v): i for i, v in enumerate(loop.carries)}
    found: list[int] = []
    others = 0
    for condition in _all_of(loop.predicate, deciding):
        limit: int | None = None
        if _turned_off(condition, place, loop, body):
            limit = 1
        op = deciding.get(id(condition))
        if op is not None and op.prim in _FLIPPED:
            (x, y), how = op.operands, op.prim
            if id(_copied(y, deciding)) in place:
                x, y, how = y, x, _FLIPPED[how]
            at = place.get(id(_copied(x, deciding)))
            end = _number(y, deciding, loop)
            if at is not None and end is not None:
                start = _number(loop.starts[at], {}, loop)
                step = _step(loop.new[at], loop.old[at], body)
                limit = _trips(how, start, end, step)
        if limit is None:
            others += 1
        else:
            found.append(limit)
    return Counted(min(found), not others) if found else None


def _turned_off(
    condition: Operand, place: Mapping[int, int], loop: Iteration, body: Mapping[int, Op]
) -> bool:
    """True if the condition is a carry set to False by each iteration."""
    at = place.get(id(condition))
    return at is not None and _number(loop.new[at], body, loop) == 0


def _trips(how: str, start: Any, end: Any, step: Any) -> int | None:
    """Iterations while `i how end` holds for `i` from `start` in steps of `step`, or None."""
    if start is None or not step or (step > 0) != (how in ("lt", "le")):
        return None
    n = float((end - start) / step)
    return max(0, math.floor(n) + 1 if how in ("le", "ge") else math.ceil(n))


def _makers(ops: Sequence[Op]) -> dict[int, Op]:
    return {id(r): op for op in ops for r in op.results}


def _all_of(predicate: Operand, makers: Mapping[int, Op]) -> Iterator[Operand]:
    """Conditions joined by `and`."""
    predicate = _copied(predicate, makers)
    op = makers.get(id(predicate))
    if op is not None and op.prim == "and":
        for x in op.operands:
            yield from _all_of(x, makers)
    else:
        yield predicate


def _copied(x: Operand, makers: Mapping[int, Op]) -> Operand:
    """Source of `x` before changes of shape or type."""
    while (op := makers.get(id(x))) is not None and op.prim in _COPIES:
        x = op.operands[0]
    return x


def _number(x: Operand, makers: Mapping[int, Op], loop: Iteration) -> Any:
    """Value of a constant of the program; None for values computed at run time."""
    x = _copied(x, makers)
    x = loop.outside.get(id(x), x)
    while isinstance(x, Value):
        op = next((o for o in reversed(loop.before) if any(r is x for r in o.results)), None)
        if op is None or op.prim not in _COPIES:
            return None
        x = op.operands[0]
    number = x.number
    return number if isinstance(number, int | float) and math.isfinite(number) else None


def _step(new: Operand, old: Value, makers: Mapping[int, Op]) -> Any:
    """Constant added to a carry per iteration; None if there is none."""
    op = makers.get(id(_copied(new, makers)))
    if op is None or op.prim not in ("add", "sub"):
        return None
    x, y = op.operands
    if op.prim == "add" and isinstance(x, Literal):
        x, y = y, x
    if _copied(x, makers) is not old or not isinstance(y, Literal):
        return None
    return y.number if op.prim == "add" else -y.number
