"""Attributes of an op as text: all, or only those not implied by types and factors."""

from __future__ import annotations

from typing import Any

from partir_search.ir.core import Op
from partir_search.ir.kind import Kind
from partir_search.ir.rule import Dims, OpRule

_HIDDEN = frozenset(
    [
        "sharding",
        "out_sharding",
        "shape",
        "new_sizes",
        "jaxpr",
        "update_jaxpr",
        "update_consts",
        "effects",
        "accuracy",
        "weak_type",
        "policy",
        "threefry_partitionable",
        "handle",
        "name",
        "out_dtype",
        "is_stable",
    ]
)


def all_attributes(op: Op) -> str:
    """Every parameter that is a number, a string or a tuple of numbers and strings."""
    return _bracketed({k: v for k, v in op.params.items() if k not in _HIDDEN and _plain(v)})


def telling_attributes(op: Op, rule: OpRule) -> str:
    """Parameters necessary to read the op.

    A product shows its factors as an einsum, unless the last dims of one operand are contracted
    with the first of the other one. Parameters in `OpRule.implied_params` and False or empty ones
    are left out.
    """
    if rule.kind is Kind.CONTRACTION and rule.supports_ring and len(rule.operands) == 2:
        return "" if _meets(rule) else f"[{einsum(rule)}]"
    found = {
        k: v for k, v in op.params.items() if k not in _HIDDEN and k not in rule.implied_params
    }
    return _bracketed({k: v for k, v in found.items() if _plain(v) and v is not False and v != ()})


def einsum(rule: OpRule) -> str:
    """`abc,dbc->ad`: a letter for each factor, a dot for dims without one."""

    def letters(dims: Dims) -> str:
        return "".join("." if f < 0 else chr(ord("a") + f) for f in dims)

    return f"{','.join(map(letters, rule.operands))}->{','.join(map(letters, rule.results))}"


def _meets(rule: OpRule) -> bool:
    """True if the last dims of the first operand are contracted with the first of the second.

    Free dims must keep their order.
    """
    (lhs, rhs), (out,) = rule.operands, rule.results
    summed = tuple(f for f in lhs if f not in out)
    n = len(summed)
    return lhs[len(lhs) - n :] == summed == rhs[:n] and lhs[: len(lhs) - n] + rhs[n:] == out


def _bracketed(shown: dict[str, Any]) -> str:
    if not shown:
        return ""
    return "[" + " ".join(f"{k}={_text(v)}" for k, v in sorted(shown.items())) + "]"


def _plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_plain(v) for v in value)
    return value is not None and isinstance(value, int | float | str | bool)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "(" + ",".join(map(_text, value)) + ")"
    return str(value)
