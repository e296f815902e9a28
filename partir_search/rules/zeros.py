"""Constructor of zeros."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp

from partir_search.ir.core import Op, Value
from partir_search.ir.from_jaxpr import FunctionReader


def zeros_of(result: Value, near: Op) -> Op:
    """Op that makes an array of zeros, with source, scope and pass of the op `near`."""
    template = _template(result.type.dtype)
    return dataclasses.replace(
        template,
        results=(result,),
        params={**template.params, "shape": result.type.shape},
        origin=near.origin,
        scope=near.scope,
        backward=near.backward,
        key=None,
    )


@functools.cache
def _template(dtype: Any) -> Op:
    """Zeros with the parameters of the installed jax; a scalar's would be a literal."""
    ops, _ = FunctionReader(()).read(lambda: [jnp.zeros((1,), dtype)], ())
    return ops[0]
