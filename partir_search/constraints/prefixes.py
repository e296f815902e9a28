"""Pytree prefixes of shardings, with errors naming the path of a mismatch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec, Sharding

from partir_search.ir.argument_paths import leaf_path
from partir_search.messages.wording import did_you_mean, shown


def is_leaf(x: Any) -> bool:
    """True for the leaves of a prefix: None, a PartitionSpec or a Sharding."""
    return x is None or isinstance(x, PartitionSpec | Sharding)


def by_position(wanted: Any, count: int) -> tuple[Any, ...]:
    """Entry of `in_shardings` for each of `count` positional arguments.

    A single sharding holds for all arguments, as in `jax.jit`.

    Raises:
      TypeError: `wanted` is a mapping, or no tuple or list.
      ValueError: the number of entries is wrong.
    """
    if is_leaf(wanted):
        return (wanted,) * count
    if isinstance(wanted, Mapping) and count != 1:
        raise TypeError(
            f"in_shardings goes by position, not by name: a tuple of {count} entries, one for each"
            f" positional argument, not {shown(wanted)}"
        )
    if count == 1 and not isinstance(wanted, tuple | list):
        return (wanted,)
    if not isinstance(wanted, tuple | list):
        raise TypeError(
            "in_shardings is a tuple with a sharding, or a pytree of them, for each positional"
            f" argument, not {shown(wanted)}"
        )
    if len(wanted) != count:
        raise ValueError(
            f"in_shardings is no pytree prefix of the function's: it has {len(wanted)} entries, the"
            f" call has {count} positional arguments; give each one a sharding, or None (arguments"
            " passed by name have none)"
        )
    return tuple(wanted)


def positional(wanted: Any, args: Sequence[Any], paths: Sequence[str]) -> tuple[Any, ...]:
    """Entry of `in_shardings` for each positional argument, checked against the argument's pytree.

    Args:
      paths: paths of the leaves of all arguments.

    Raises:
      TypeError: `wanted` is a mapping, or no tuple or list.
      ValueError: an entry is no prefix of its argument; names the path of the mismatch.
    """
    found, at = by_position(wanted, len(args)), 0
    for i, (prefix, arg) in enumerate(zip(found, args, strict=True)):
        leaves = len(jax.tree.leaves(arg))
        name = paths[at].partition("/")[0] if leaves else f"argument {i}"
        check_prefix("in_shardings", prefix, arg, name)
        at += leaves
    return found


def check_prefix(what: str, prefix: Any, tree: Any, path: str) -> None:
    """Raises ValueError, with the path of the mismatch, if `prefix` is no prefix of `tree`."""
    if where := mismatch(prefix, tree, path):
        raise ValueError(f"{what} is no pytree prefix of the function's: {where}")


def mismatch(prefix: Any, tree: Any, path: str = "") -> str:
    """Path and reason of the first mismatch between a prefix and a tree; "" for a valid prefix.

    Args:
      path: path of `tree`, for the message.
    """
    if is_leaf(prefix):
        return ""
    expected, actual = _children(prefix), _children(tree)
    at = path or "the whole tree"
    if expected is None:
        if actual is not None and not isinstance(prefix, str):
            return f"{at} has {shown(prefix)} where a sharding or {_kind(tree)} is"
        return ""
    if actual is None:
        return f"{at} is an array, and is given {_kind(prefix)}: give it one sharding"
    for key in expected:
        if key not in actual:
            return f"{at} has no {key!r}; it has {_listed(actual)}{did_you_mean(key, actual)}"
    for key in actual:
        if key not in expected:
            return f"{at} has {key!r}, which is given no sharding; None leaves it free"
    if type(prefix) is not type(tree):
        return f"{at} is {_kind(tree)}, and is given {_kind(prefix)}"
    pairs = ((expected[key], actual[key], leaf_path(path, (key,))) for key in expected)
    return next((found for pair in pairs if (found := mismatch(*pair))), "")


def _kind(tree: Any) -> str:
    name = type(tree).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _listed(names: Sequence[str] | Mapping[str, Any]) -> str:
    several = list(names)
    return ", ".join(several[:8]) + (", ..." if len(several) > 8 else "")


def _children(tree: Any) -> dict[str, Any] | None:
    """Children of a node by key; None for a leaf."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
    if len(flat) == 1 and not flat[0][0]:
        return None
    return {jax.tree_util.keystr(keys, simple=True, separator="/"): x for keys, x in flat}
