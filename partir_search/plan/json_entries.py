"""Entries of plan files, checked against the type that is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partir_search.messages.wording import shown


def typed_entry(data: Mapping[str, Any], key: str, kind: type, words: str) -> Any:
    """The entry of `data` with a key.

    Args:
      kind: type of the entry in JSON.
      words: description of valid entries, for the message.

    Raises:
      KeyError: there is no entry.
      ValueError: the entry has another type.
    """
    if not isinstance(data[key], kind):
        raise ValueError(f"its {key!r} are {words}, not {shown(data[key])}")
    return data[key]
