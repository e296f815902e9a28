"""Writes out a `while` loop over a batch of examples, each of which stops by itself.

`jax.vmap` of a while loop whose condition differs between examples gives one loop with a predicate
of shape (b, ...). The loop runs as long as any example goes on, and examples that have finished
keep their values. The `while` equation leaves both to its lowering. Here both are written out in
ordinary ops: the predicate becomes one more carry, the condition is `reduce_or` of the predicate,
and selects stand at the end of the body.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import jax
from jax import lax

from partir_search.ir.core import Op, Operand, Region, Value
from partir_search.ir.reading.counted_loops import Counted, Iteration, counted

Env = dict[int, Operand]  # by id of a value


class Reader(Protocol):
    """The part of the jaxpr reader that is needed here."""

    def read(self, env: dict[Any, Operand], atom: Any) -> Operand: ...

    def value(self, aval: Any, name: str) -> Value: ...

    def run(
        self, jaxpr: Any, args: Sequence[Operand], ops: list[Op], prefix: str
    ) -> tuple[Any, dict[Any, Operand]]: ...


def is_batched(op: Op) -> bool:
    """Tells whether an op is a `while` with a predicate per example."""
    return op.prim == "while" and bool(op.regions[0].results[0].type.shape)


def write_out(reader: Reader, op: Op, before: list[Op]) -> tuple[Op, Counted | None]:
    """The loop with a scalar predicate, and what it counts.

    The condition on the initial carries is appended to `before`. The new loop's last carry, the
    predicate, has a result that nobody uses. Its param `examples_stop` is the predicate's rank.
    """
    decide, body = op.regions
    asked = op.params["cond_nconsts"]
    consts = asked + op.params["body_nconsts"]
    stem = op.results[0].name if op.results else op.prim

    def condition(args: Sequence[Operand], ops: list[Op]) -> Operand:
        env: Env = dict(zip(map(id, decide.args), args, strict=True))
        ops += _copies(reader, decide.ops, env)
        return _seen(env, decide.results[0])

    def fresh(values: Sequence[Value]) -> list[Value]:
        return [reader.value(v.type, v.name) for v in values]

    start = condition([*op.operands[:asked], *op.operands[consts:]], before)
    predicate = start.type

    outer = [*fresh(decide.args[asked:]), reader.value(predicate, f"{stem}.on")]
    last: list[Op] = []
    (on,) = _traced(reader, op, lambda p: [_any(p)], outer[-1:], last)

    held, going = fresh(decide.args[:asked]), reader.value(predicate, f"{stem}.on")
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
    goes_on = condition([*held, *new], inside)

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
            Region((*held, *body.args, going), tuple(inside), (*new, goes_on)),
        ),
    )
    outside = dict(zip(map(id, held), op.operands, strict=False))
    starts = op.operands[consts:]
    return loop, counted(
        Iteration(goes_on, inside, new, old, made, inside, starts, before, outside)
    )


def _copies(reader: Reader, ops: Sequence[Op], env: Env) -> list[Op]:
    """Copies that read what `env` has of their operands; adds their results to it."""
    copies = []
    for op in ops:
        operands = tuple(_seen(env, x) for x in op.operands)
        regions = tuple(_region(reader, r, env) for r in op.regions)
        results = tuple(reader.value(r.type, r.name) for r in op.results)
        env.update(zip(map(id, op.results), results, strict=True))
        copies.append(dataclasses.replace(op, operands=operands, results=results, regions=regions))
    return copies


def _region(reader: Reader, region: Region, env: Env) -> Region:
    args = tuple(reader.value(v.type, v.name) for v in region.args)
    own: Env = {**env, **dict(zip(map(id, region.args), args, strict=True))}
    ops = _copies(reader, region.ops, own)
    return Region(args, tuple(ops), tuple(_seen(own, x) for x in region.results))


def _seen(env: Env, x: Operand) -> Operand:
    return env.get(id(x), x)


def _any(predicate: Any) -> Any:
    return lax.reduce_or(predicate, tuple(range(predicate.ndim)))


def _where(predicate: Any, old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    """The new carries of examples that go on, the old ones of the others."""
    dims = tuple(range(predicate.ndim))
    return [
        lax.select_n(lax.broadcast_in_dim(predicate, x.shape, dims), x, y)
        for x, y in zip(old, new, strict=True)
    ]


def _traced(
    reader: Reader, loop: Op, fun: Any, args: Sequence[Operand], ops: list[Op]
) -> list[Operand]:
    """The results of `fun`, whose ops are appended as the loop's own."""
    shapes = [jax.ShapeDtypeStruct(x.type.shape, x.type.dtype) for x in args]
    made: list[Op] = []
    inner, env = reader.run(jax.make_jaxpr(fun)(*shapes), args, made, "")
    ops += [
        dataclasses.replace(op, origin=loop.origin, scope=loop.scope, backward=loop.backward)
        for op in made
    ]
    return [reader.read(env, v) for v in inner.outvars]
