"""Argument paths and globs on them: `*` within one key, `**` for zero or more keys."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from partir_search.ir.core import Module, Value


@functools.lru_cache(maxsize=1024)
def _pattern(glob: str) -> re.Pattern[str]:
    """Regular expression of a glob, for paths with a `/` after each key."""
    keys = []
    for key in glob.strip("/").split("/"):
        if key == "**":
            keys.append("(?:[^/]+/)*")
        else:
            keys.append("[^/]*".join(map(re.escape, key.split("*"))) + "/")
    return re.compile("".join(keys) + "(?:.*/)?", re.DOTALL)


def matches(glob: str, path: str) -> bool:
    """True if the glob matches the path or the root of a subtree with the path in it."""
    return _pattern(glob).fullmatch(path + "/") is not None


def leaf_path(prefix: str, keys: Sequence[Any]) -> str:
    """`prefix` and pytree keys joined by `/`."""
    inner = jax.tree_util.keystr(tuple(keys), simple=True, separator="/")
    return "/".join(p for p in (prefix, inner) if p)


def parameter_names(fun: Callable[..., Any], positional: int) -> list[str]:
    """Names of the first `positional` positional arguments of a call.

    A function with an attribute `argument_paths` overrides the names of its signature.
    """
    said: Sequence[str] | None = getattr(fun, "argument_paths", None)
    if said is not None:
        return list(said)[:positional]
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        return [f"arg{i}" for i in range(positional)]
    names: list[str] = []
    for p in parameters:
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            names.append(p.name)
        elif p.kind == p.VAR_POSITIONAL:
            names += [f"{p.name}/{i}" for i in range(positional - len(names))]
    names += [f"arg{i}" for i in range(len(names), positional)]
    return names[:positional]


def as_path(name: str, known: Iterable[str]) -> str:
    """Path of a value's name, `batch/x` for `batch.x`; other names are unchanged.

    Args:
      name: name of a value; its first name may be the name of an argument.
      known: paths of arguments.
    """
    first = {path.partition("/")[0] for path in known}
    return name.replace(".", "/") if name.partition(".")[0] in first else name


def nearest(wanted: str, known: Iterable[str], limit: int = 8) -> str:
    """Known paths for an error message, comma-separated, most similar to `wanted` first.

    Args:
      limit: maximum number of paths.
    """
    keys = {p for p in re.split(r"[/*]+", wanted) if p}
    text = difflib.SequenceMatcher(b=wanted)

    def rank(path: str) -> tuple[int, float, str]:
        text.set_seq1(path)
        return -len(keys & set(path.split("/"))), -text.ratio(), path

    ranked = sorted(known, key=rank)
    shown = ", ".join(ranked[:limit])
    return shown + (", ..." if len(ranked) > limit else "")


def named(module: Module, glob: str) -> list[tuple[str, Value]]:
    """Arguments matched by a glob, as (path, value) pairs.

    Raises:
      ValueError: no argument matches; the message lists similar paths.
    """
    pairs = zip(module.arg_paths, module.body.args, strict=True)
    found = [(p, v) for p, v in pairs if matches(glob, p)]
    if not found:
        raise ValueError(
            f"{glob!r} matches no argument; near it are: {nearest(glob, module.arg_paths)}"
        )
    return found
