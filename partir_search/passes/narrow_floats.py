"""Copies of programs with 16-bit floats, for their simulated cost only."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from partir_search.ir.core import Module, Value
from partir_search.passes.rewriter import Rewriter

WIDE, NARROW = np.dtype(np.float32), jnp.dtype(jnp.bfloat16)


def with_narrow_floats(module: Module) -> Module:
    """The program with bfloat16 for float32 in all types of values.

    Parameters of ops keep their types: the copy can be partitioned and costed, but not emitted.
    """
    return _Narrow(module).run()


class _Narrow(Rewriter):
    def value(self, old: Value) -> Value:
        new = super().value(old)
        if new.type.dtype == WIDE:
            new.type = dataclasses.replace(new.type, dtype=NARROW, itemsize=NARROW.itemsize)
        return new
