"""Calls with a multiple of the batch, from shapes alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from partir_search.arguments.abstract_values import SCALARS, abstract
from partir_search.planning.trace import Call

OtherCall = tuple[Call, Sequence[Any], dict[str, Any]]  # dynamic, all positional, all keywords


def with_batch(
    call: Call, args: Sequence[Any], kwargs: dict[str, Any], tied: Iterable[int], times: int
) -> OtherCall | None:
    """A call of ShapeDtypeStructs with `times` the batch; None for a call without a batch.

    The batch is the leading dim of the first array of rank two or more outside the train state.
    Further arrays with the leading dim are multiplied as well.

    Args:
      call: the dynamic arguments.
      args, kwargs: all arguments.
      tied: flat positions of the train state.
      times: factor on the batch.
    """
    leaves, state = call.leaves(), frozenset(tied)
    found = [x if isinstance(x, SCALARS) else abstract(x) for x in leaves]
    shapes = [x.shape for i, x in enumerate(found) if i not in state and not isinstance(x, SCALARS)]
    batch = next((shape[0] for shape in shapes if len(shape) > 1), 0)
    if not state or not batch:
        return None
    for i, x in enumerate(found):
        if i not in state and not isinstance(x, SCALARS) and x.shape[:1] == (batch,):
            shape = (times * batch, *x.shape[1:])
            found[i] = jax.ShapeDtypeStruct(shape, x.dtype, weak_type=x.weak_type)
    dynamic, named = jax.tree.unflatten(call.flat[1], found)
    other = dataclasses.replace(call, args=dynamic, kwargs=named)
    return other, *call.filled(args, kwargs, dynamic, named)
