"""Registry of front ends by library, and selection of front ends for a call."""

from __future__ import annotations

import functools
import sys
from typing import Any

import jax

from partir_search.frontends.equinox import Equinox
from partir_search.frontends.nnx import Nnx
from partir_search.frontends.protocol import FrontEnd, Unwrapped
from partir_search.frontends.refs import Refs, have_refs

_FRONT_ENDS: list[FrontEnd] = [Nnx(), Equinox()]
_REFS = Refs()  # last: objects of the libraries may contain refs


def register_front_end(front: FrontEnd) -> None:
    """Adds a front end: objects of its library become valid arguments of steps.

    Args:
      front: tried after the front ends of flax nnx and equinox, once its `module` is imported.
    """
    _FRONT_ENDS.append(front)
    _owner.cache_clear()


def imported() -> list[FrontEnd]:
    """Front ends of imported libraries."""
    return [front for front in _FRONT_ENDS if front.module in sys.modules]


@functools.lru_cache(maxsize=4096)
def _owner(kind: type, count: int) -> FrontEnd | bool:
    """Front end of a type; True for a pytree not to be searched, False without front end.

    Args:
      count: number of imported libraries, in the cache key: a later import may claim the type.
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
    """True for types of an imported library with a front end."""
    return not isinstance(_owner(kind, len(imported())), bool)


def claimed(tree: Any) -> tuple[FrontEnd, ...]:
    """Front ends of the objects in a pytree."""
    count = len(imported())
    if not count:
        return (_REFS,) if have_refs(jax.tree.leaves(tree)) else ()
    found = set[str]()

    def stops(x: Any) -> bool:
        owner = _owner(_kind(x), count)
        if not isinstance(owner, bool):
            found.add(owner.module)
        return owner is not False

    leaves = jax.tree.leaves(tree, is_leaf=stops)
    fronts = tuple(front for front in imported() if front.module in found)
    # Object graphs of nnx may be cyclic: nnx itself finds the refs inside.
    inner = [x for x in leaves if not isinstance(_owner(_kind(x), count), Nnx)]
    return (*fronts, _REFS) if have_refs(jax.tree.leaves(inner)) else fronts


def unwrapped(fun: Any) -> tuple[FrontEnd, Unwrapped] | None:
    """Front end and options of a function under a library's own `jit`; None for plain functions."""
    for front in imported():
        inner = front.unwrap(fun)
        if inner is not None:
            return front, inner
    return None
