"""Text shared by messages: close matches, values, units."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable
from typing import Any

MAX_CHARACTERS = 80  # of a value in a message


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """``; did you mean 'tpu_v5e'?`` for the closest known name, or "" without a close match.

    Case, spaces and punctuation are ignored.
    """
    names = {_plain(name): name for name in known}
    near = difflib.get_close_matches(_plain(given), names, n=1, cutoff=0.6)
    return f"; did you mean {names[near[0]]!r}?" if near else ""


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def shown(value: Any) -> str:
    """Short text of a value for messages; arrays are shown as their types."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if array := _array(value):
        return f"an array of type {array}"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    text = " ".join(_SHORT.repr(value).split())
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 3]}..."


def _array(value: Any) -> str:
    """Type of an array, `float32[8, 4]`; "" for any further value."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return f"{dtype}{list(shape)}" if isinstance(shape, tuple) and dtype is not None else ""


class _Short(reprlib.Repr):
    """Short `repr` of values; arrays in containers are shown as their types."""

    def repr_instance(self, x: Any, level: int) -> str:
        return _array(x) or super().repr_instance(x, level)


_SHORT = _Short()
_SHORT.maxother = _SHORT.maxstring = 2 * MAX_CHARACTERS


def amount(nbytes: float, digits: int = 3) -> str:
    """Bytes with a decimal unit, rounded to `digits` significant digits."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            number = f"{nbytes / size:.{digits}g}"
            return f"{number if 'e' not in number else f'{nbytes / size:,.0f}'} {unit}"
    return f"{nbytes:.0f} B"


def duration(seconds: float) -> str:
    """Seconds with a decimal unit, rounded to three significant digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns" if seconds else "0"


def milliseconds(seconds: float) -> str:
    """Seconds per step in milliseconds, from 10 s on in seconds, with three decimals."""
    if seconds >= 10.0:
        return f"{seconds:.3f} s"
    return f"{seconds * 1e3:.3f} ms"


def multiples(size: int, by: int) -> str:
    """The multiples of `by` next to `size`: ``4000 or 4002``."""
    below = size - size % by
    return f"{below} or {below + by}" if below else f"{by}"
