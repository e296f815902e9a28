"""Table of rules, and the rule of primitives without an entry."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from partir_search.ir.core import Literal, Op, Operand, Value
from partir_search.ir.data_flow import DataFlowEdges
from partir_search.ir.kind import Kind
from partir_search.ir.role import Role
from partir_search.ir.rule import NONE, OpRule

RuleFn = Callable[[Op], OpRule]


@dataclasses.dataclass(frozen=True, slots=True)
class Registered:
    """Entry of a primitive: function from op to rule, and role."""

    make: RuleFn
    role: Role | None = None

    def __call__(self, op: Op) -> OpRule:
        rule = self.make(op)
        return rule if self.role is None else dataclasses.replace(rule, role=self.role)


RULES: dict[str, Registered] = {}
"""Entry of each primitive by name, filled by `register`; a second entry of a name is an error."""


def register(
    *prims: str, role: Role | Mapping[str, Role] | None = None
) -> Callable[[RuleFn], RuleFn]:
    """Registers a function from op to rule for each of `prims`.

    Args:
      role: one role for all, or roles by name.
    """

    def add(fn: RuleFn) -> RuleFn:
        for prim in prims:
            if prim in RULES:
                raise ValueError(f"primitive {prim!r} has a rule already")
            RULES[prim] = Registered(fn, role.get(prim) if isinstance(role, Mapping) else role)
        return fn

    return add


def role_of(op: Op) -> Role | None:
    """Role of an op, given by its rule."""
    found = RULES.get(op.prim)
    return None if found is None else found.role


def edges_of(op: Op) -> DataFlowEdges:
    """Data-flow edges of a region op."""
    return RULES[op.prim](op).data_flow


def shape_of(op: Op, i: int) -> tuple[int, ...]:
    """Shape of operand `i`."""
    return op.operands[i].type.shape


def result_shape(op: Op, i: int = 0) -> tuple[int, ...]:
    return op.results[i].type.shape


def whole(op: Op, kind: Kind, **fields: Any) -> OpRule:
    """Rule without factors: every operand is needed whole, and the op runs replicated."""
    return OpRule(
        kind,
        sizes=(),
        operands=tuple((NONE,) * len(x.type.shape) for x in op.operands),
        results=tuple((NONE,) * len(x.type.shape) for x in op.results),
        reducers=(),
        **fields,
    )


def rule_key(op: Op) -> Hashable:
    """Key of everything a rule may depend on; equal keys have equal rules.

    Primitive, params, types, signs of literals and the number of regions (not given by a cond's
    params).
    """
    if op.key is None:
        op.key = (
            op.prim,
            len(op.regions),
            tuple(
                [
                    (x.type.shape, x.type.dtype, None if isinstance(x, Value) else _sign(x))
                    for x in op.operands
                ]
            ),
            tuple([(x.type.shape, x.type.dtype) for x in op.results]),
            _params_key(op.params),
        )
    return op.key  # type: ignore[no-any-return]


def _params_key(params: Mapping[str, Any]) -> Hashable:
    found = tuple(sorted(params.items()))
    try:
        hash(found)
    except TypeError:
        return tuple([(k, _hashable(v)) for k, v in found])
    return found


def _sign(x: Literal) -> tuple[bool, bool]:
    """Sign of a literal, (is zero, is positive)."""
    return x.is_zero(), positive(x)


def positive(x: Operand) -> bool:
    """True for a literal above zero."""
    if not isinstance(x, Literal):
        return False
    number = x.number
    return not isinstance(number, complex) and bool(number > 0)


def _hashable(param: Any) -> Hashable:
    try:
        hash(param)
    except TypeError:
        return repr(param)
    return param  # type: ignore[no-any-return]


class RuleTable:
    """Rules of a module's ops, computed once per distinct key."""

    def __init__(self, rules: Mapping[str, RuleFn] = RULES) -> None:
        self._rules = rules
        self._by_key: dict[Hashable, tuple[Hashable, OpRule]] = {}

    def __call__(self, op: Op) -> OpRule:
        key = rule_key(op)
        found = self._by_key.get(key)
        if found is None:
            fn = self._rules.get(op.prim)
            rule = whole(op, Kind.OPAQUE) if fn is None else fn(op)
            found = self._by_key[key] = key, rule
        op.key, rule = found  # equal ops share one key object: keys are large
        return rule

    def opaque(self, ops: Iterable[Op]) -> list[Op]:
        """Ops of primitives without a rule."""
        return [op for op in ops if not op.regions and self(op).opaque]
