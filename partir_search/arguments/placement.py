"""Placement of the leaves of a call by the plan's shardings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from partir_search.arguments.abstract_values import abstract, is_array
from partir_search.frontends.refs import is_ref, moved


def struct_of(x: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    """ShapeDtypeStruct of a leaf, with the sharding if its mesh has devices."""
    x = abstract(x)
    concrete = sharding if isinstance(sharding.mesh, Mesh) else None
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=concrete, weak_type=x.weak_type)


def is_placed(x: Any, sharding: NamedSharding) -> bool:
    """True for an array with the plan's sharding, on a mesh with the plan's axis names and types.

    The type of an array on Explicit axes names its mesh, and the program expects the plan's mesh.
    """
    if not is_array(x):
        return False
    now = x.sharding
    if now == sharding:
        return True
    same = now.mesh == sharding.mesh if isinstance(now, NamedSharding) else False
    return bool(same and now.is_equivalent_to(sharding, x.ndim))


def place(x: Any, sharding: NamedSharding) -> Any:
    """Moves a leaf to the plan's sharding; returns a leaf already there without a copy.

    Raises:
      RuntimeError: the array was deleted.
    """
    if is_array(x):
        if x.is_deleted():
            raise RuntimeError("array has been deleted")
        if is_placed(x, sharding):
            return x
        if not x.is_fully_addressable:
            return jax.device_put(x, sharding)
    elif is_ref(x):
        return moved(x, sharding, place)
    if jax.process_count() > 1:
        return _place_globally(x, sharding)
    return jax.device_put(x, sharding)


def _place_globally(x: Any, sharding: NamedSharding) -> Any:
    """Global array from an array replicated in every process."""
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = _place_globally(jax.random.key_data(x), NamedSharding(sharding.mesh, sharding.spec))
        return jax.random.wrap_key_data(data, impl=str(jax.random.key_impl(x)))
    host = jax.device_get(x)
    return jax.make_array_from_callback(x.shape, sharding, lambda index: host[index])


def from_local(x: Any, shape: tuple[int, ...], sharding: NamedSharding) -> jax.Array:
    """Global array of `shape` from the rows held by each process."""
    made: jax.Array = jax.make_array_from_process_local_data(sharding, np.asarray(x), shape)
    return made
