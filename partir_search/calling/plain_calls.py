"""Plain calls of partitioned functions within the trace of an enclosing partitioned function."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

_PLAIN = contextvars.ContextVar("plain", default=False)


@contextlib.contextmanager
def plain_calls() -> Iterator[None]:
    """Context in which partitioned functions run plain, inside of an enclosing function."""
    token = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(token)


def is_plain() -> bool:
    """True inside `plain_calls`."""
    return _PLAIN.get()
