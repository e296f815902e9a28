"""Fingerprints of ops, equal for ops at one place in copies of one layer."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partir_search.ir.core import Literal, Op, Value
from partir_search.passes.fold.linear import LinearOps


def fingerprints(linear: LinearOps, key_of: Callable[[Op], Hashable]) -> np.ndarray[Any, Any]:
    """Returns a number per op, equal for ops of equal rule and literals within one region."""
    ids: dict[Hashable, int] = {}

    def of(op: Op) -> int:
        literals = tuple(
            (i, _literal_key(x)) for i, x in enumerate(op.operands) if isinstance(x, Literal)
        )
        inner = tuple(
            (tuple(of(o) for o in r.ops), len(r.args), len(r.results)) for r in op.regions
        )
        key = _types_key(op) if _moves_keys(op) else key_of(op)
        return ids.setdefault((key, literals, inner, op.backward), len(ids))

    kinds = np.array([of(op) for op in linear.ops], dtype=np.int64)
    found: np.ndarray[Any, Any] = kinds * len(linear.regions) + np.array(linear.region)
    return found


def _moves_keys(op: Op) -> bool:
    """True for an op that takes random keys from an array with a key for each layer.

    Params with the positions of keys do not tell layers apart.
    """
    values = [*op.results, *(x for x in op.operands if isinstance(x, Value))]
    return bool(values) and not op.regions and all(map(_holds_keys, values))


def _holds_keys(value: Value) -> bool:
    """True for random keys, typed ones or pairs of 32-bit words."""
    if jnp.issubdtype(value.type.dtype, jax.dtypes.prng_key):
        return True
    return value.type.dtype == jnp.uint32 and value.type.shape[-1:] == (2,)


def _types_key(op: Op) -> Hashable:
    values = [*op.operands, *op.results]
    return op.prim, tuple((x.type.shape, x.type.dtype) for x in values)


def _literal_key(literal: Literal) -> Hashable:
    """Returns the value of a float, or for an integer only the comparison with zero.

    Decay rates of two moments differ; numbers folded into the random keys of layers should not tell
    layers apart.
    """
    if jnp.issubdtype(literal.type.dtype, np.inexact):
        value = complex(literal.value)
        return "nan" if np.isnan(value) else value
    return literal.is_zero()
