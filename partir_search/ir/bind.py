"""Calls a primitive again, outside of the trace that it came from.

The equation's own context manager must not be entered: it restores the user's context mesh, which
fails inside a manual region. Only what changes values is restored: the threefry scheme is
handled by the rule of `random_bits`; shardings in params are dropped, as layout is ours.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partir_search.ir.core import Op

_OURS = (
    "bounds",  # of padded operands that are indexed into (see `passes.pad`)
    "ends",  # boundaries of what a window slides over (see `passes.views.convolutions`)
)
_LAYOUT_PARAMS = ("sharding", "out_sharding")


def bind(op: Op, params: Mapping[str, Any], args: Sequence[Any]) -> Sequence[Any]:
    """Applies the primitive of `op` to `args` with `params`; always a sequence of results."""
    params = {k: v for k, v in params.items() if k not in _OURS}
    for name in _LAYOUT_PARAMS:
        if name in params:
            params[name] = None
    primitive = op.handle
    with jax.named_scope(op.scope) if op.scope else contextlib.nullcontext():
        out = primitive.bind(*args, **primitive.get_bind_params(params))
    return out if primitive.multiple_results else (out,)


def constant(array: Any) -> Any:
    """A closed-over array, free of the device that it may be committed to."""
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        return array
    return jnp.asarray(np.asarray(array))
