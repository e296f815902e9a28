"""Puts the leaves of a call where the plan wants them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from partir_search.arguments.abstract_values import abstract, is_array
from partir_search.frontends.refs import is_ref, moved


def struct_of(x: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    """The leaf's shape and type, with the sharding unless that has no devices."""
    x = abstract(x)
    concrete = sharding if isinstance(sharding.mesh, Mesh) else None
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=concrete, weak_type=x.weak_type)


def place(x: Any, sharding: NamedSharding) -> Any:
    """The leaf with the plan's sharding; no copy if it has it already.

    RuntimeError if it is deleted.

    The same blocks on a mesh of other axis names or types are not enough: the type of an array on
    Explicit axes names its mesh, which the program does not know.
    """
    if is_array(x):
        if x.is_deleted():
            raise RuntimeError("array has been deleted")
        now = x.sharding
        if now == sharding:
            return x
        same = now.mesh == sharding.mesh if isinstance(now, NamedSharding) else False
        if same and now.is_equivalent_to(sharding, x.ndim):
            return x
        if not x.is_fully_addressable:
            return jax.device_put(x, sharding)
    elif is_ref(x):
        return moved(x, sharding, place)
    if jax.process_count() > 1:
        return _place_globally(x, sharding)
    return jax.device_put(x, sharding)


def _place_globally(x: Any, sharding: NamedSharding) -> Any:
    """An array that every process holds whole, as one global array."""
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = _place_globally(jax.random.key_data(x), NamedSharding(sharding.mesh, sharding.spec))
        return jax.random.wrap_key_data(data, impl=str(jax.random.key_impl(x)))
    host = jax.device_get(x)
    return jax.make_array_from_callback(x.shape, sharding, lambda index: host[index])


def from_local(x: Any, shape: tuple[int, ...], sharding: NamedSharding) -> jax.Array:
    """A global array of `shape`, of which every process has a part of the rows."""
    made: jax.Array = jax.make_array_from_process_local_data(sharding, np.asarray(x), shape)
    return made
