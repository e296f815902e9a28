"""Front ends by library, and those that a call needs."""

from __future__ import annotations

import functools
import sys
from typing import Any

import jax

from partir_search.frontends.equinox import Equinox
from partir_search.frontends.nnx import Nnx
from partir_search.frontends.protocol import FrontEnd, Unwrapped
from partir_search.frontends.refs import Refs, hold_refs

_FRONT_ENDS: list[FrontEnd] = [Nnx(), Equinox()]
_REFS = Refs()  # behind all others, whose objects may hold refs


def register_front_end(front: FrontEnd) -> None:
    """Adds a library whose objects may be arguments of steps; see `FrontEnd`.

    Args:
      front: looked at after those of flax nnx and equinox, where its `module` is imported.
    """
    _FRONT_ENDS.append(front)
    _owner.cache_clear()


def imported() -> list[FrontEnd]:
    """Front ends of libraries that are imported."""
    return [front for front in _FRONT_ENDS if front.module in sys.modules]


@functools.lru_cache(maxsize=4096)
def _owner(kind: type, count: int) -> FrontEnd | bool:
    """The front end that claims a type; else whether pytrees of the type are left alone.

    Args:
      count: of libraries imported; one that was imported later may claim types anew.
    """
    for front in imported():
        claimed = front.claims(kind)
        if claimed is None:
            return True
        if claimed:
            return front
    return False


def _kind(x: Any) -> Any:
    return type(x)


def claims(kind: Any) -> bool:
    """Tells whether a type is of a library that is imported."""
    return not isinstance(_owner(kind, len(imported())), bool)


def claimed(tree: Any) -> tuple[FrontEnd, ...]:
    """Front ends of the objects in a pytree."""
    count = len(imported())
    if not count:
        return (_REFS,) if hold_refs(jax.tree.leaves(tree)) else ()
    found = set[str]()

    def stops(x: Any) -> bool:
        owner = _owner(_kind(x), count)
        if not isinstance(owner, bool):
            found.add(owner.module)
        return owner is not False

    leaves = jax.tree.leaves(tree, is_leaf=stops)
    fronts = tuple(front for front in imported() if front.module in found)
    # Graphs may hold themselves: what they hold is looked at by their own front end.
    inner = [x for x in leaves if not isinstance(_owner(_kind(x), count), Nnx)]
    return (*fronts, _REFS) if hold_refs(jax.tree.leaves(inner)) else fronts


def unwrapped(fun: Any) -> tuple[FrontEnd, Unwrapped] | None:
    """The front end under whose own `jit` a function is, and what that was told."""
    for front in imported():
        inner = front.unwrap(fun)
        if inner is not None:
            return front, inner
    return None
