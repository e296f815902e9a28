"""Binding of primitives outside of the trace that recorded them.

The context manager of an equation restores the user's context mesh, and entering one inside of a
manual region fails; `bind` never enters it. Of the settings it would restore, only the threefry
scheme changes values, and the rule of `random_bits` handles threefry. Shardings in params are
dropped: the partition decides all layouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partir_search.ir.core import Op

_OURS = (
    "bounds",  # extents before padding of operands read or written at indices (`passes.pad`)
    "ends",  # boundary modes of windowed operands (`passes.views.convolutions`)
)
_LAYOUT_PARAMS = ("sharding", "out_sharding")


def bind(op: Op, params: Mapping[str, Any], args: Sequence[Any]) -> Sequence[Any]:
    """Results of the primitive of `op` on `args`, as a sequence for every primitive."""
    params = {k: v for k, v in params.items() if k not in _OURS}
    for name in _LAYOUT_PARAMS:
        if name in params:
            params[name] = None
    primitive = op.handle
    out = primitive.bind(*args, **primitive.get_bind_params(params))
    return out if primitive.multiple_results else (out,)


def constant(array: Any) -> Any:
    """A closed-over array, uncommitted from any device."""
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        return array
    return jnp.asarray(np.asarray(array))
