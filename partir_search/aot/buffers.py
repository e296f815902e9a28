"""Sizes of a compiled program's buffers, from XLA's dumped buffer assignment.

The dump is an `HloProto` in protobuf's wire format (xla/service/hlo.proto). Only the fields named
here are read, by their numbers.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping

BUFFER_ASSIGNMENT = 3  # of HloProto
LOGICAL_BUFFERS, ALLOCATIONS, TRACES = 1, 3, 4  # of BufferAssignmentProto
ID, SIZE = 1, 2  # of LogicalBufferProto, and of BufferAllocationProto
THREAD_LOCAL, PARAMETER, LIVE_OUT, CONSTANT = 3, 5, 7, 12  # of BufferAllocationProto
EVENTS = 1  # of HeapSimulatorTrace
KIND, BUFFER, SHARED = 1, 2, 5  # of HeapSimulatorTrace.Event
FREED, SHARED_WITH = 1, 2  # kinds of events; 0: a new buffer

_VARINT, _BYTES = 0, 2  # wire types
FIXED_SIZES = {1: 8, 5: 4}  # wire types and bytes of fixed-size values
Fields = dict[int, list[int | bytes]]


@dataclasses.dataclass(frozen=True, slots=True)
class BufferSizes:
    """Bytes on one device: at the peak, and of the arguments."""

    peak: int
    arguments: int


def buffer_sizes(data: bytes) -> BufferSizes:
    """Sizes in a serialized `HloProto` with a buffer assignment, as `memory_analysis` has them.

    The peak is the sum of arguments, results and constants, plus the highest of the traces of
    temporaries in the memories of the device (HBM, VMEM and scalar memory).

    Raises:
      ValueError: the data has no buffer assignment, or another format.
    """
    assignment = _message(_only(_message(data), BUFFER_ASSIGNMENT))
    sizes: dict[int, int] = {}
    for each in assignment[LOGICAL_BUFFERS]:
        buffer = _message(each)
        sizes[_number(buffer, ID)] = _number(buffer, SIZE)
    fixed = arguments = 0
    for each in assignment[ALLOCATIONS]:
        allocation = _message(each)
        if _number(allocation, THREAD_LOCAL):
            continue
        size = _number(allocation, SIZE)
        if _number(allocation, PARAMETER):
            arguments += size
        if any(_number(allocation, kind) for kind in (PARAMETER, LIVE_OUT, CONSTANT)):
            fixed += size
    traces = (_message(each)[EVENTS] for each in assignment[TRACES])
    temporary = max((_highest(map(_message, events), sizes) for events in traces), default=0)
    return BufferSizes(fixed + temporary, arguments)


def _highest(events: Iterable[Fields], sizes: Mapping[int, int]) -> int:
    """Most bytes live at once in a trace.

    A buffer is live until it and all that share it (a loop's carried values) are freed.
    """
    owner: dict[int, int] = {}
    users = collections.Counter[int]()
    live = highest = 0
    for event in events:
        buffer, kind = _number(event, BUFFER), _number(event, KIND)
        if kind == FREED:
            first = owner[buffer]
            users[first] -= 1
            live -= 0 if users[first] else sizes[first]
            continue
        named = _number(event, SHARED) if kind == SHARED_WITH else buffer
        first = owner[buffer] = owner.get(named, named) if kind == SHARED_WITH else buffer
        live += 0 if users[first] else sizes[first]
        users[first] += 1
        highest = max(highest, live)
    return highest


def _message(data: int | bytes) -> Fields:
    """Values of a message by field number."""
    if not isinstance(data, bytes):
        raise ValueError("a number stands where a message should")
    found: Fields = collections.defaultdict(list)
    for number, value in _fields(data):
        found[number].append(value)
    return found


def _only(fields: Fields, number: int) -> bytes:
    values = fields[number]
    if len(values) != 1 or not isinstance(values[0], bytes):
        raise ValueError(f"{len(values)} messages stand in field {number}, not one")
    return values[0]


def _number(fields: Fields, number: int) -> int:
    """Value of an integer field; 0 if absent."""
    value = fields[number][-1] if fields[number] else 0
    if not isinstance(value, int):
        raise ValueError(f"field {number} has bytes, not a number")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values of a message, in order."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire == _BYTES:
            size, at = _varint(data, at)
        elif wire in FIXED_SIZES:
            size = FIXED_SIZES[wire]
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if at + size > len(data):
            raise ValueError("the data ends early")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A variable-length integer and the position behind it."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
    raise ValueError("the data ends early")
