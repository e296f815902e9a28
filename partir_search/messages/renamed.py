"""Deprecation warnings for renamed public names, each kept for one version."""

from __future__ import annotations

import warnings
from typing import TypeVar

_T = TypeVar("_T")


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """Warns that `old` is now `new`.

    Args:
      old, new: the names as the user writes each.
      stacklevel: frames between this call and the user's line; 3 for a caller one frame deep.
    """
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=stacklevel)


def renamed_option(old: str, given: _T, new: str, value: _T, default: _T) -> _T:
    """Value of a renamed option.

    Args:
      old, given: deprecated name, and the value given under it.
      new, value: current name, and the value given under it.
      default: default of both.
    """
    if given is default:
        return value
    warn_renamed(f"{old}=", f"{new}=", 4)
    return given if value is default else value
