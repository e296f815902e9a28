"""Largest elements along the last dim of an array."""

from __future__ import annotations

import math
from typing import Any

import jax
from jax import lax


def largest(x: Any, k: int) -> tuple[jax.Array, jax.Array]:
    """Elements and positions [..., k], as those of `lax.top_k`.

    XLA finds the largest elements of rows of a matrix with a kernel of its own, and sorts all
    elements of an array of more dims.
    """
    *batch, size = x.shape
    if len(batch) < 2:
        best, at = lax.top_k(x, k)
        return best, at
    best, at = lax.top_k(lax.reshape(x, (math.prod(batch), size)), k)
    return lax.reshape(best, (*batch, k)), lax.reshape(at, (*batch, k))
