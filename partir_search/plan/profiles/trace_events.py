"""Timeline of a simulated step as trace events, the JSON read by ui.perfetto.dev.

The format is Google's "Trace Event Format": complete events (`X`), counters (`C`) and names (`M`);
times in microseconds.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from typing import Any

from partir_search.simulator.timeline import COMPUTE, Event, Timeline

_PROCESS = 1


def trace_events(timeline: Timeline, name: str) -> dict[str, Any]:
    """Trace events of a timeline: one track of compute, tracks per mesh axes, live memory.

    Collectives of one axis that overlap are on further tracks of the axis: a viewer draws events of
    one track only if they are disjoint or nested.

    Args:
      timeline: the timeline.
      name: name of the process in the viewer.
    """
    lanes = dict.fromkeys((COMPUTE, *(e.lane for e in timeline.events)))
    events: list[dict[str, Any]] = [_named("process_name", 0, name)]
    track = 0
    for lane in lanes:
        own = sorted((e for e in timeline.events if e.lane == lane), key=lambda e: e.start)
        for row, disjoint in enumerate(_tracks(own)):
            label = lane if lane == COMPUTE else f"links of {lane}"
            events.append(_named("thread_name", track, f"{label} ({row + 1})" if row else label))
            events += [_complete(e, track) for e in disjoint]
            track += 1
    events += [_counter(seconds, nbytes) for seconds, nbytes in timeline.memory]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def encoded(events: dict[str, Any], compressed: bool) -> bytes:
    """Trace events as JSON bytes. Compressed bytes of equal events are equal."""
    data = json.dumps(events, separators=(",", ":")).encode()
    return gzip.compress(data, mtime=0) if compressed else data


def _tracks(events: Sequence[Event]) -> Iterator[list[Event]]:
    """Events in order of start, split into lists of disjoint events; at least one list."""
    tracks: list[list[Event]] = [[]]
    for event in events:
        slack = 1e-9 * event.seconds  # starts are sums of seconds, with rounding errors
        free = (t for t in tracks if not t or t[-1].start + t[-1].seconds <= event.start + slack)
        track = next(free, None)
        if track is None:
            tracks.append([event])
        else:
            track.append(event)
    yield from tracks


def _named(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": _PROCESS, "tid": track, "name": kind, "args": {"name": name}}


def _complete(event: Event, track: int) -> dict[str, Any]:
    known = {"scope": event.scope, "source": event.source}
    args: dict[str, Any] = {k: v for k, v in known.items() if v}
    if event.lane != COMPUTE:
        args["exposed_us"] = event.exposed * 1e6
    return {
        "ph": "X",
        "pid": _PROCESS,
        "tid": track,
        "name": event.kind,
        "ts": event.start * 1e6,
        "dur": event.seconds * 1e6,
        "args": args,
    }


def _counter(seconds: float, nbytes: float) -> dict[str, Any]:
    args = {"bytes": nbytes}
    return {"ph": "C", "pid": _PROCESS, "name": "live memory", "ts": seconds * 1e6, "args": args}
