"""Partitioned functions that another one calls, while that one is traced to be planned."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

_PLAIN = contextvars.ContextVar("plain", default=False)


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Partitioned functions that are called inside are plain, as parts of the one around them."""
    token = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(token)


def is_plain() -> bool:
    """Tells whether the call is inside of `plainly`."""
    return _PLAIN.get()
