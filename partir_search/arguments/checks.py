"""Errors for arguments of a call: leaves other than arrays, and unhashable static arguments."""

from __future__ import annotations

import array
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from partir_search.messages.wording import shown


class NotAnArray(TypeError):
    """A leaf of an argument is neither an array nor a number."""

    def __init__(self, leaf: Any, path: str = "an argument") -> None:
        known = isinstance(leaf, np.ndarray | np.generic)
        kind = shown(leaf) if known else f"{_kind(leaf)}: {shown(leaf)}"
        super().__init__(
            f"{path} is {kind}; leaves of arguments are arrays and numbers. {_remedy(leaf)}"
        )
        self.leaf = leaf

    def at(self, paths: Sequence[str], leaves: Sequence[Any]) -> TypeError:
        """The same error with the path of the leaf."""
        pairs = zip(paths, leaves, strict=True)
        return TypeError(str(NotAnArray(self.leaf, next(p for p, x in pairs if x is self.leaf))))


def _dtype(leaf: Any) -> bool:
    return getattr(leaf, "dtype", None) is not None


def _kind(leaf: Any) -> str:
    if _dtype(leaf) and type(leaf).__module__.startswith(("jax", "numpy")):
        return "an array"
    if callable(leaf) and not isinstance(leaf, type):
        return "a function"
    article = "an" if type(leaf).__name__[0].lower() in "aeiou" else "a"
    return f"{article} {type(leaf).__name__}"


def _remedy(leaf: Any) -> str:
    if isinstance(leaf, np.ma.MaskedArray):
        return "Pass its values with .filled(...), and the mask as an array of its own"
    foreign = hasattr(type(leaf), "__array__") and not isinstance(leaf, np.ndarray | np.generic)
    if foreign or isinstance(leaf, array.array | memoryview | range):
        return "Pass numpy.asarray(...) of it"
    if isinstance(leaf, str | bytes) or _dtype(leaf):
        return (
            "Leave it out of what the step is given, or pass it as an argument of its own that is"
            " named in static_argnames"
        )
    if callable(leaf):
        return (
            "Keep it out of the pytree: close over it, pass it as an argument of its own that is"
            " named in static_argnames, or make it a static field of a dataclass, as apply_fn of"
            " flax's TrainState is"
        )
    return (
        "Pass it as an argument of its own that is named in static_argnames (it needs a hash), or"
        " register its class with jax.tree_util.register_dataclass"
    )


def check_leaf(leaf: Any) -> None:
    """Checks that `jax.jit` accepts a leaf.

    Args:
      leaf: neither a Python number nor a `jax.Array`.

    Raises:
      NotAnArray: the leaf is an object, a string, or an array of another library.
    """
    kind, dtype = type(leaf), getattr(leaf, "dtype", None)
    if kind is np.ndarray or kind is jax.ShapeDtypeStruct:
        wrong = _not_numeric(dtype)
    else:
        native = isinstance(leaf, np.ndarray | np.generic) or kind.__module__.startswith("jax")
        typed = isinstance(dtype, np.dtype) or type(dtype).__module__.startswith("jax")
        wrong = not typed or not isinstance(getattr(leaf, "shape", None), tuple)
        wrong |= (not native and hasattr(kind, "__array__")) or isinstance(leaf, np.ma.MaskedArray)
        wrong |= _not_numeric(dtype)
    if wrong:
        raise NotAnArray(leaf)


def _not_numeric(dtype: Any) -> bool:
    """True if the elements are strings, dates, records or Python objects."""
    return isinstance(dtype, np.dtype) and (dtype.kind in "OSUmM" or dtype.type is np.void)


def check_statics(statics: Iterable[tuple[str, Any]]) -> None:
    """Checks that static arguments are hashable.

    Raises:
      TypeError: a static argument has no hash; the message names the argument.
    """
    for name, value in statics:
        try:
            hash(value)
        except TypeError as error:
            raise TypeError(_unhashable(name, value)) from error


def _unhashable(name: str, value: Any) -> str:
    about = f"static argument {name!r} is {_kind(value)} and has no hash: {shown(value)}; "
    if hasattr(value, "shape"):
        return about + "arrays are no static arguments: leave it out of static_argnums"
    made = "give its class __hash__ and __eq__ (a frozen dataclass)"
    for kind, other in (
        (list, "pass a tuple"),
        (dict, "pass a tuple of its items"),
        (set, "pass a frozenset"),
        (tuple, "make all that it holds hashable (tuples for lists)"),
    ):
        made = other if isinstance(value, kind) else made
    return f"{about}{made}, or leave it out of static_argnums and static_argnames"
