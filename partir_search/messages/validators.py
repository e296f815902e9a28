"""Validators of single values.

Each returns the value, or raises an error that names the argument, the value and the remedy:
TypeError for a wrong type, ValueError for a value out of range.
"""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Mapping, Sequence
from typing import Any

from partir_search.messages.wording import did_you_mean, shown


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """An int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} is a whole number, not {shown(value)}{_as_int(value)}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    return int(value)


def _as_int(value: Any) -> str:
    """Hint to write the integer equal to `value`, or to omit None; "" if neither applies."""
    if isinstance(value, str) and value.strip().lstrip("-").isdecimal():
        return f"; write {int(value)}"
    if isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    return "; leave it out for its default" if value is None else ""


def number(name: str, value: Any, *, above: float | None = None) -> float:
    """A float, finite or infinite, of at least 0; with `above`, greater than `above`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is a number, not {shown(value)}")
    found = float(value)
    if math.isnan(found) or found < 0 or (above is not None and found <= above):
        least = f"above {above:g}" if above is not None else "at least 0"
        raise ValueError(f"{name} is a number {least}, not {value}")
    return found


def flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False, not {shown(value)}")
    return value


def choice(name: str, value: Any, known: Sequence[Any]) -> Any:
    """One of the values in `known`."""
    if not any(type(value) is type(k) and value == k for k in known):
        near = did_you_mean(value, filter(_is_text, known)) if isinstance(value, str) else ""
        raise ValueError(f"{name} is one of {tuple(known)}, not {shown(value)}{near}")
    return value


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def text(name: str, value: Any, example: str) -> str:
    """A nonempty str."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a string, {example}, not {shown(value)}")
    if not value:
        raise ValueError(f"{name} is empty; write {example}")
    return value


def names(name: str, value: Any, example: str) -> tuple[str, ...]:
    """A tuple of strings; a single string is an error."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{name} is a tuple of strings, {example}, not {shown(value)}")
    for one in value:
        if not isinstance(one, str):
            raise TypeError(f"{name} is a tuple of strings, {example}; {shown(one)} is none")
    return tuple(value)


def rates(name: str, value: Any) -> Mapping[str, float]:
    """A mapping from names to positive numbers."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} maps names to numbers, not {shown(value)}")
    for key, figure in value.items():
        number(f"{name}[{key!r}]", figure, above=0)
    return value


def path(name: str, value: Any) -> str:
    """Path of a file or folder, as a str with `~` expanded."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} is a path, a str or pathlib.Path, not {shown(value)}")
    found = os.fspath(value)
    if not isinstance(found, str):
        raise TypeError(f"{name} is a path of text, not of bytes: {shown(found)}")
    if not found:
        raise ValueError(f"{name} is an empty path")
    return os.path.expanduser(found)
