"""Errors for the arguments of a call: leaves that are no arrays, statics that have no hash."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from partir_search.wording import shown


class NotAnArray(TypeError):
    """A leaf of an argument is neither an array nor a number."""

    def __init__(self, leaf: Any, path: str = "an argument") -> None:
        kind = shown(leaf) if _dtype(leaf) else f"{_kind(leaf)}: {shown(leaf)}"
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
    if _dtype(leaf):
        return "an array"
    if callable(leaf) and not isinstance(leaf, type):
        return "a function"
    article = "an" if type(leaf).__name__[0].lower() in "aeiou" else "a"
    return f"{article} {type(leaf).__name__}"


def _remedy(leaf: Any) -> str:
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


def numeric(leaf: Any) -> Any:
    """A leaf that has no type as a numpy array; NotAnArray where it is none of numbers."""
    try:
        array = np.asarray(leaf)
    except Exception as error:  # of the object's own
        raise NotAnArray(leaf) from error
    if not_numeric(array.dtype):
        raise NotAnArray(leaf)
    return array


def not_numeric(dtype: Any) -> bool:
    """Whether elements are strings, dates, records or Python objects."""
    return isinstance(dtype, np.dtype) and (dtype.kind in "OSUmM" or dtype.type is np.void)


def check_statics(statics: Iterable[tuple[str, Any]]) -> None:
    """A TypeError with the name of a static argument that has no hash."""
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
    for kind, other in ((list, "a tuple"), (dict, "a tuple of its items"), (set, "a frozenset")):
        made = f"pass {other}" if isinstance(value, kind) else made
    return f"{about}{made}, or leave it out of static_argnums and static_argnames"
