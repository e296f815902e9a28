"""Arrays for cases of rules: of a fixed seed, away from zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Case = tuple[str, Callable[..., Any], tuple[Any, ...]]
rng = np.random.default_rng(0)


def floats(*shape: int) -> jax.Array:
    return jnp.asarray(rng.uniform(0.1, 0.9, shape), jnp.float32)


def ints(*shape: int, low: int = 0, high: int = 8) -> jax.Array:
    return jnp.asarray(rng.integers(low, high, shape), jnp.int32)


def bools(*shape: int) -> jax.Array:
    return jnp.asarray(rng.integers(0, 2, shape), bool)
