"""Shardings fixed by a `jit` or a `shard_map` inside of a program, read as constraints."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

from jax.sharding import NamedSharding

from partir_search.ir.core import Op, Operand, Value
from partir_search.ir.source_names import clean, is_backward


class Reader(Protocol):
    """Methods of the jaxpr reader used in this file."""

    backward: bool

    def scope(self, prefix: str, eqn: Any) -> str: ...

    def value(self, aval: Any, name: str) -> Value: ...


def constrained(
    reader: Reader, op: Op, ops: list[Op], x: Operand, sharding: Any, to: Value | None = None
) -> Operand:
    """`x` after a sharding constraint, which is appended to `ops`.

    Args:
      op: the op that fixes the sharding.
      to: value to make; None for a new one.
    """
    if not isinstance(x, Value):
        return x
    made = to or reader.value(x.type, f"{x.name}_in")
    ops.append(
        dataclasses.replace(
            op,
            prim="sharding_constraint",
            operands=(x,),
            results=(made,),
            params={"sharding": sharding, "unconstrained_dims": frozenset()},
            effect=False,
        )
    )
    return made


def laid(
    reader: Reader, eqn: Any, ops: list[Op], values: list[Operand], which: str, prefix: str
) -> list[Operand]:
    """Values after the constraints given by an inner `jit`.

    Args:
      which: param of the `jit` with the shardings, "in_shardings" or "out_shardings".
    """
    given = eqn.params.get(which) or ()
    if not any(isinstance(s, NamedSharding) for s in given):
        return values
    scope = clean(reader.scope(prefix, eqn))
    op = Op(-1, "", (), (), {}, (), eqn.source_info, scope)
    op.backward, op.handle = reader.backward or is_backward(scope), eqn.primitive
    return [
        constrained(reader, op, ops, x, s) if isinstance(s, NamedSharding) else x
        for x, s in zip(values, given, strict=True)
    ]
