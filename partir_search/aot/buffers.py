"""Sizes of a compiled program's buffers, from XLA's dumped buffer assignment.

The dump is an `HloProto` message (xla/service/hlo.proto). Only the fields named here are read, by
their numbers.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping

from partir_search.aot.protobuf import Message

BUFFER_ASSIGNMENT = 3  # of HloProto
LOGICAL_BUFFERS, ALLOCATIONS, TRACES = 1, 3, 4  # of BufferAssignmentProto
ID, SIZE = 1, 2  # of LogicalBufferProto, and of BufferAllocationProto
MEMORY = 4  # of LogicalBufferProto; 0, or no field: main memory
THREAD_LOCAL, PARAMETER, LIVE_OUT, CONSTANT = 3, 5, 7, 12  # of BufferAllocationProto
EVENTS = 1  # of HeapSimulatorTrace
KIND, BUFFER, SHARED = 1, 2, 5  # of HeapSimulatorTrace.Event
FREED, SHARED_WITH = 1, 2  # kinds of events; 0: a new buffer


@dataclasses.dataclass(frozen=True, slots=True)
class BufferSizes:
    """Bytes on one device.

    Attributes:
      peak: at the peak, as `memory_analysis` has it, by whichever memory has the highest trace.
      arguments: of the arguments.
      main: at the peak of main memory.
    """

    peak: int
    arguments: int
    main: int


def buffer_sizes(data: bytes) -> BufferSizes:
    """Sizes in a serialized `HloProto` with a buffer assignment, as `memory_analysis` has them.

    The peak is the sum of arguments, results and constants, plus the highest of the traces of
    temporaries in the memories of the device (HBM, VMEM and scalar memory). Temporaries of less
    than the memory on the chip may all lie there: the peak is then no peak of main memory.

    Raises:
      ValueError: the data has no buffer assignment, or another format.
    """
    found = Message(data).messages(BUFFER_ASSIGNMENT)
    if len(found) != 1:
        raise ValueError(f"{len(found)} messages stand in field {BUFFER_ASSIGNMENT}, not one")
    (assignment,) = found
    buffers = assignment.messages(LOGICAL_BUFFERS)
    sizes = {buffer.number(ID): buffer.number(SIZE) for buffer in buffers}
    fixed = arguments = 0
    for allocation in assignment.messages(ALLOCATIONS):
        if allocation.number(THREAD_LOCAL):
            continue
        size = allocation.number(SIZE)
        if allocation.number(PARAMETER):
            arguments += size
        if any(allocation.number(kind) for kind in (PARAMETER, LIVE_OUT, CONSTANT)):
            fixed += size
    memory = {buffer.number(ID): buffer.number(MEMORY) for buffer in buffers}
    traces = [found for trace in assignment.messages(TRACES) if (found := trace.messages(EVENTS))]
    highest = [(memory[events[0].number(BUFFER)], _highest(events, sizes)) for events in traces]
    peak = max((nbytes for _, nbytes in highest), default=0)
    main = max((nbytes for where, nbytes in highest if not where), default=0)
    return BufferSizes(fixed + peak, arguments, fixed + main)


def _highest(events: Iterable[Message], sizes: Mapping[int, int]) -> int:
    """Most bytes live at once in a trace.

    A buffer is live until it and all that share it (a loop's carried values) are freed.
    """
    owner: dict[int, int] = {}
    users = collections.Counter[int]()
    live = highest = 0
    for event in events:
        buffer, kind = event.number(BUFFER), event.number(KIND)
        if kind == FREED:
            first = owner[buffer]
            users[first] -= 1
            live -= 0 if users[first] else sizes[first]
            continue
        named = event.number(SHARED) if kind == SHARED_WITH else buffer
        first = owner[buffer] = owner.get(named, named) if kind == SHARED_WITH else buffer
        live += 0 if users[first] else sizes[first]
        users[first] += 1
        highest = max(highest, live)
    return highest
