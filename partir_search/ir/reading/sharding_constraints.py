"""Shardings that a `jit` or a `shard_map` inside of a program fixes, read as constraints."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

from jax.sharding import NamedSharding

from partir_search.ir.core import Op, Operand, Value
from partir_search.ir.source_names import clean, is_backward


class Reader(Protocol):
    """Methods of the reader of jaxprs that regions need."""

    backward: bool

    def scope(self, prefix: str, eqn: Any) -> str: ...

    def value(self, aval: Any, name: str) -> Value: ...


def constrained(
    reader: Reader, op: Op, ops: list[Op], x: Operand, sharding: Any, to: Value | None = None
) -> Operand:
    """`x` behind a sharding constraint, which is appended to `ops`.

    Args:
      op: the op that fixes the sharding.
      to: the value to make.
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
    """Values behind constraints, where a `jit` inside of the program has `which` for them."""
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
