"""Rewrite of `while` loops over a batch of examples with trip counts of their own.

`jax.vmap` of a while loop whose condition depends on the example gives one loop with a predicate of
shape (b, ...). The loop runs until the last example finishes, and finished examples keep their
values. The `while` equation leaves both to its lowering; here both become ordinary ops: the
predicate is one more carry, the condition is `reduce_or` of the predicate, and the body ends with
selects.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
from jax import lax

from partir_search.ir.core import Op, Operand, Region, Value
from partir_search.ir.reading.counted_loops import Counted, Iteration, counted
from partir_search.ir.rewriter import RegionRewriter


class Reader(Protocol):
    """Methods of the jaxpr reader used in this file."""

    def read(self, env: dict[Any, Operand], atom: Any) -> Operand: ...

    def value(self, aval: Any, name: str) -> Value: ...

    def run(
        self, jaxpr: Any, args: Sequence[Operand], ops: list[Op], prefix: str
    ) -> tuple[Any, dict[Any, Operand]]: ...


def is_batched(op: Op) -> bool:
    """True for a `while` with a predicate per example."""
    return op.prim == "while" and bool(op.regions[0].results[0].type.shape)


def write_out(reader: Reader, op: Op, before: list[Op]) -> tuple[Op, Counted | None]:
    """The loop with a scalar predicate, and its trip-count bound.

    The condition on the initial carries is appended to `before`. The new loop's last carry is the
    predicate; its result is unused. Param `examples_stop` of the new loop is the predicate's rank.
    """
    decide, body = op.regions
    asked = op.params["cond_nconsts"]
    consts = asked + op.params["body_nconsts"]
    stem = op.results[0].name if op.results else op.prim

    def condition(args: Sequence[Operand], ops: list[Op]) -> Operand:
        copies = _Condition(reader, dict(zip(decide.args, args, strict=True)))
        ops += copies.ops(decide)
        return copies.operand(decide.results[0])

    def fresh(values: Sequence[Value]) -> list[Value]:
        return [reader.value(v.type, v.name) for v in values]

    start = condition([*op.operands[:asked], *op.operands[consts:]], before)
    predicate = start.type

    outer = [*fresh(decide.args[asked:]), reader.value(predicate, f"{stem}.on")]
    last: list[Op] = []
    (on,) = _traced(reader, op, lambda p: [_any(p)], outer[-1:], last)

    condition_consts, going = fresh(decide.args[:asked]), reader.value(predicate, f"{stem}.on")
    old, made = body.args[op.params["body_nconsts"] :], body.results
    inside = list(body.ops)
    changed = [i for i, (x, y) in enumerate(zip(old, made, strict=True)) if x is not y]
    kept = _traced(
        reader,
        op,
        lambda p, *xs: _where(p, xs[: len(changed)], xs[len(changed) :]),
        [going, *(old[i] for i in changed), *(made[i] for i in changed)],
        inside,
    )
    new = list(made)
    for i, x in zip(changed, kept, strict=True):
        new[i] = x
    goes_on = condition([*condition_consts, *new], inside)

    loop = dataclasses.replace(
        op,
        operands=(*op.operands, start),
        results=(*op.results, reader.value(predicate, f"{stem}.left")),
        params={
            **op.params,
            "cond_nconsts": 0,
            "body_nconsts": consts,
            "examples_stop": len(predicate.shape),
        },
        regions=(
            Region(tuple(outer), tuple(last), (on,)),
            Region((*condition_consts, *body.args, going), tuple(inside), (*new, goes_on)),
        ),
    )
    outside = dict(zip(map(id, condition_consts), op.operands, strict=False))
    starts = op.operands[consts:]
    return loop, counted(
        Iteration(goes_on, inside, new, old, made, inside, starts, before, outside)
    )


class _Condition(RegionRewriter):
    """Copies the ops of a condition with new arguments; outside values are unchanged."""

    def __init__(self, reader: Reader, given: Mapping[Value, Operand]) -> None:
        super().__init__()
        self._reader, self._given = reader, given

    def operand(self, x: Operand) -> Operand:
        if not isinstance(x, Value):
            return x
        return self._given[x] if x in self._given else self.new.get(x, x)

    def value(self, old: Value) -> Value:
        if old not in self.new:
            self.new[old] = self._reader.value(old.type, old.name)
        return self.new[old]


def _any(predicate: Any) -> Any:
    return lax.reduce_or(predicate, tuple(range(predicate.ndim)))


def _where(predicate: Any, old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    """New carries of unfinished examples, old carries of finished ones."""
    dims = tuple(range(predicate.ndim))
    return [
        lax.select_n(lax.broadcast_in_dim(predicate, x.shape, dims), x, y)
        for x, y in zip(old, new, strict=True)
    ]


def _traced(
    reader: Reader, loop: Op, fun: Any, args: Sequence[Operand], ops: list[Op]
) -> list[Operand]:
    """Results of `fun`; its ops are appended with source and scope of the loop."""
    shapes = [jax.ShapeDtypeStruct(x.type.shape, x.type.dtype) for x in args]
    made: list[Op] = []
    inner, env = reader.run(jax.make_jaxpr(fun)(*shapes), args, made, "")
    ops += [
        dataclasses.replace(op, origin=loop.origin, scope=loop.scope, backward=loop.backward)
        for op in made
    ]
    return [reader.read(env, v) for v in inner.outvars]
