"""Calls with a multiple of the batch, from shapes alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from partir_search.arguments.abstract_values import SCALARS, abstract
from partir_search.planning.trace import Call

OtherCall = tuple[Call, Sequence[Any], dict[str, Any]]  # dynamic, all positional, all keywords


def with_batch(
    call: Call, args: Sequence[Any], kwargs: dict[str, Any], data: Mapping[int, int], times: int
) -> OtherCall | None:
    """A call of ShapeDtypeStructs with `times` the batch; None for a call without a batch.

    The batch is that of the first data argument of rank two or more. Further data with a batch of
    this length are multiplied as well.

    Args:
      call: the dynamic arguments.
      args, kwargs: all arguments.
      data: dim of the batch by flat position of the data arguments.
      times: factor on the batch.
    """
    leaves = call.leaves()
    found = [x if isinstance(x, SCALARS) else abstract(x) for x in leaves]
    arrays: list[tuple[int, Any]] = [
        (i, found[i]) for i in data if not isinstance(found[i], SCALARS)
    ]
    batch = next((x.shape[data[i]] for i, x in arrays if len(x.shape) > 1), 0)
    if not batch:
        return None
    for i, x in arrays:
        dim = data[i]
        if x.shape[dim : dim + 1] == (batch,):
            shape = (*x.shape[:dim], times * batch, *x.shape[dim + 1 :])
            found[i] = jax.ShapeDtypeStruct(shape, x.dtype, weak_type=x.weak_type)
    dynamic, named = jax.tree.unflatten(call.flat[1], found)
    other = dataclasses.replace(call, args=dynamic, kwargs=named)
    return other, *call.filled(args, kwargs, dynamic, named)
