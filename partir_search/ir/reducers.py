"""Identity elements of the monoids that combine partial results."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np


def number_of(value: Any, dtype: Any) -> Any:
    return np.asarray(value, dtype)[()]


def identity(monoid: str, dtype: Any) -> Any:
    """Identity element of a monoid, as a numpy scalar of `dtype`."""
    if monoid == "sum":
        return number_of(0, dtype)
    if dtype == np.bool_:
        return np.bool_(monoid in ("and", "min"))
    if monoid in ("and", "or"):
        return number_of(-1 if monoid == "and" else 0, dtype)
    if jnp.issubdtype(dtype, jnp.inexact):
        return number_of(-np.inf if monoid == "max" else np.inf, dtype)
    info = jnp.iinfo(dtype)
    return number_of(info.min if monoid == "max" else info.max, dtype)
