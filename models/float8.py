"""Products in float8: operands rounded to e4m3, cotangents to e5m2, each scaled to its range.

Written as rounding and scaling back around the product, the form that XLA turns into float8
products where the chip has them (Micikevicius et al. 2022, arXiv 2209.05433).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def _rounded(x: jax.Array, dtype: Any) -> jax.Array:
    most = float(jnp.finfo(dtype).max)
    scale = jnp.maximum(jnp.abs(x).max().astype(jnp.float32), 1e-12) / most
    return ((x / scale.astype(x.dtype)).astype(dtype).astype(x.dtype)) * scale.astype(x.dtype)


@jax.custom_vjp
def operand(x: jax.Array) -> jax.Array:
    """`x` as e4m3 holds it; cotangents pass."""
    return _rounded(x, jnp.float8_e4m3fn)


operand.defvjp(lambda x: (operand(x), None), lambda _, g: (g,))


@jax.custom_vjp
def result(x: jax.Array) -> jax.Array:
    """`x`; its cotangents as e5m2 holds them."""
    return x


result.defvjp(lambda x: (x, None), lambda _, g: (_rounded(g, jnp.float8_e5m2),))


def dot_general(lhs: Any, rhs: Any, dimension_numbers: Any, **options: Any) -> jax.Array:
    """`lax.dot_general` of rounded operands: the `dot_general=` of flax's layers."""
    return result(lax.dot_general(operand(lhs), operand(rhs), dimension_numbers, **options))
