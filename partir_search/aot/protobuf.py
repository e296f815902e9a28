"""Reader of protobuf's wire format, by numbers of fields: no generated classes are required."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

_VARINT, _FIXED_8, _BYTES, _FIXED_4 = 0, 1, 2, 5  # wire types


class Message:
    """Fields of one encoded message by number."""

    def __init__(self, data: Any) -> None:
        """Reads the fields.

        Raises:
          ValueError: the bytes are no message.
        """
        self._fields: dict[int, list[Any]] = collections.defaultdict(list)
        for number, value in _fields(memoryview(data)):
            self._fields[number].append(value)

    def has(self, number: int) -> bool:
        """True if the field is given."""
        return number in self._fields

    def first(self, number: int) -> Any:
        """First value of a field."""
        return self._fields[number][0]

    def number(self, number: int) -> int:
        """Value of an integer field; 0 if absent.

        Raises:
          ValueError: the field has bytes.
        """
        value = self._fields[number][0] if self.has(number) else 0
        if not isinstance(value, int):
            raise ValueError(f"field {number} has bytes, not a number")
        return value

    def text(self, number: int) -> str:
        """Value of a text field; "" if absent."""
        return bytes(self._fields[number][0]).decode() if self.has(number) else ""

    def messages(self, number: int) -> list[Message]:
        """Values of a repeated field of messages.

        Raises:
          ValueError: the field has numbers, or bytes that are no message.
        """
        values = self._fields[number] if self.has(number) else []
        if any(isinstance(value, int) for value in values):
            raise ValueError(f"field {number} has numbers, not messages")
        return [Message(value) for value in values]

    def map(self, number: int) -> list[Message]:
        """Values of a map field, entries of which are messages (key, value)."""
        return [Message(entry.first(2)) for entry in self.messages(number) if entry.has(2)]


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """(number, value) of the fields of an encoded message; values are integers or bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == _BYTES:
            size, at = _varint(data, at)
        elif wire in (_FIXED_8, _FIXED_4):
            size = 8 if wire == _FIXED_8 else 4
        else:
            raise ValueError(f"wire type {wire} at byte {at}: not an encoded message")
        if at + size > len(data):
            raise ValueError("the data ends early: not an encoded message")
        yield number, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A variable-length integer, and the position behind it."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
    raise ValueError("the data ends early: not an encoded message")
