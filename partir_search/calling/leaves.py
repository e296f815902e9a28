"""Arguments and results of an executable as flat lists.

jax flattens a call's arguments and builds its results in C++ again after the checks of a call have
flattened them in Python. An executable takes one `Leaves` per argument instead, and returns one.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax


@dataclasses.dataclass(frozen=True, eq=False)
class Keys:
    """Key paths of the leaves of one argument or of the results, as jax prints them.

    Equal only to itself: it is a part of the tree structure that jax compares in every call.
    """

    texts: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Key:
    """One key, in place of a path of keys."""

    text: str

    def __str__(self) -> str:
        return self.text


class Leaves:
    """Flat list of arrays with key paths; a pytree node.

    Attributes:
      leaves: the arrays, a tuple.
      keys: their key paths.
    """

    __slots__ = ("keys", "leaves")

    def __init__(self, keys: Keys, leaves: Iterable[Any]) -> None:
        self.keys, self.leaves = keys, tuple(leaves)


jax.tree_util.register_pytree_with_keys(
    Leaves,
    lambda x: (list(zip(map(_Key, x.keys.texts), x.leaves, strict=True)), x.keys),
    Leaves,
    lambda x: (x.leaves, x.keys),
)


class FlatArguments:
    """Converter of the flat leaves of a call to one `Leaves` per argument."""

    def __init__(self, in_tree: Any) -> None:
        """Converter for calls whose (args, kwargs) have a tree structure."""
        args, kwargs = in_tree.unflatten(range(in_tree.num_leaves))
        self._names = sorted(kwargs)
        values = [*args, *(kwargs[name] for name in self._names)]
        self._count, self._keys, self._spans = len(args), list[Keys](), list[slice]()
        end = 0
        for value in values:
            self._keys.append(keys_of(value))
            start, end = end, end + len(self._keys[-1].texts)
            self._spans.append(slice(start, end))

    def __call__(self, leaves: Sequence[Any]) -> tuple[list[Leaves], dict[str, Leaves]]:
        """Positional and keyword arguments of the executable."""
        values = [
            Leaves(keys, leaves[span]) for keys, span in zip(self._keys, self._spans, strict=True)
        ]
        return values[: self._count], dict(zip(self._names, values[self._count :], strict=True))


def keys_of(tree: Any) -> Keys:
    """Key paths of the leaves of a pytree."""
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return Keys(tuple(jax.tree_util.keystr(keys) for keys, _ in paths))


def dynamic_signature(
    fun: Callable[..., Any], statics: Sequence[str], first: Sequence[str]
) -> inspect.Signature | None:
    """Signature of a function without static arguments, from which jax names arguments.

    Args:
      fun: the function.
      statics: names of static arguments.
      first: names of parameters to prepend.

    Returns:
      None if the function has no signature.
    """
    own = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in first]
    names: Sequence[str] | None = getattr(fun, "argument_paths", None)
    try:
        if names is not None:
            kept = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
            kept.append(inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD))
        else:
            every = inspect.signature(fun).parameters.values()
            kept = [p for p in every if p.name not in statics]
        return inspect.Signature([*own, *kept])
    except (TypeError, ValueError):  # no signature, or names like `layers/0`
        return None
