"""Shapes and dtypes of the leaves of a call."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from partir_search.arguments.checks import check_leaf

SCALARS = (bool, int, float, complex)
"""Types of leaves passed to a jitted function unchanged, as scalars may be static arguments."""


def abstract(x: Any) -> Any:
    """ShapeDtypeStruct of a leaf, without its sharding; Python scalars have weak types."""
    if isinstance(x, SCALARS):
        dtype = jax.dtypes.canonicalize_dtype(np.dtype(type(x)))
        return jax.ShapeDtypeStruct((), dtype, weak_type=not isinstance(x, bool))
    if not is_array(x):
        check_leaf(x)
    dtype = x.dtype
    if isinstance(dtype, np.dtype):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    kind = (
        x if hasattr(x, "weak_type") else getattr(x, "aval", None)
    )  # a ref has its type in `aval`
    weak = bool(getattr(kind, "weak_type", False))
    return jax.ShapeDtypeStruct(tuple(x.shape), dtype, weak_type=weak)


@functools.cache
def _array_type(kind: Any) -> bool:
    return issubclass(kind, jax.Array)


def is_array(x: Any) -> bool:
    """True if a leaf is a jax array; cached by class, as `isinstance` with an ABC is slow."""
    return _array_type(x.__class__)


def leaf_key(x: Any) -> tuple[tuple[int, ...], Any, bool]:
    """Shape, dtype and weak type of a leaf: an entry of the key that selects an executable."""
    if is_array(x):
        return x.shape, x.dtype, bool(getattr(x, "weak_type", False))
    x = abstract(x)
    return x.shape, x.dtype, x.weak_type
