"""Trace events as an XSpace, the protocol buffer of profiles that xprof reads.

xprof (2.24) reads files named `*.xplane.pb` and no trace events in JSON. A process becomes a plane,
a track a line, and a complete event an event with the arguments as stats; counters are left out.
The message is written as text and serialized by jax (xplane.proto of OpenXLA's tsl).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

_PREFIX = "/device:CUSTOM:"  # of planes that the trace viewer shows as they are
_PS_PER_US = 1_000_000


def encoded_xspace(events: Mapping[str, Any]) -> bytes:
    """Serialized XSpace of trace events (`trace_events`)."""
    every: Sequence[dict[str, Any]] = events["traceEvents"]
    planes = "".join(
        _plane(number, [e for e in every if e["pid"] == pid])
        for number, pid in enumerate(dict.fromkeys(e["pid"] for e in every), 1)
    )
    data: bytes = jax.profiler.ProfileData.text_proto_to_serialized_xspace(planes)
    return data


def _plane(number: int, events: Sequence[dict[str, Any]]) -> str:
    """Text of the plane of one process."""
    complete = [e for e in events if e["ph"] == "X"]
    names = {(e["name"], e.get("tid")): e["args"]["name"] for e in events if e["ph"] == "M"}
    kinds = {kind: i for i, kind in enumerate(dict.fromkeys(e["name"] for e in complete), 1)}
    stats = dict.fromkeys(itertools.chain.from_iterable(e["args"] for e in complete))
    numbers = {stat: i for i, stat in enumerate(stats, 1)}
    title = next((name for (kind, _), name in names.items() if kind == "process_name"), "")
    parts = [f"id: {number} name: {_quoted(_PREFIX + title)}"]
    for track in dict.fromkeys(e["tid"] for e in complete):
        name = _quoted(names.get(("thread_name", track), str(track)))
        own = (_event(e, kinds, numbers) for e in complete if e["tid"] == track)
        parts.append(f"lines {{ id: {track + 1} name: {name} {' '.join(own)} }}")
    parts += _metadata("event_metadata", kinds)
    parts += _metadata("stat_metadata", numbers)
    return f"planes {{ {' '.join(parts)} }}\n"


def _event(event: Mapping[str, Any], kinds: Mapping[str, int], numbers: Mapping[str, int]) -> str:
    start, duration = (round(event[key] * _PS_PER_US) for key in ("ts", "dur"))
    stats = "".join(
        f" stats {{ metadata_id: {numbers[key]} {_value(value)} }}"
        for key, value in event["args"].items()
    )
    at = f"metadata_id: {kinds[event['name']]} offset_ps: {start} duration_ps: {duration}"
    return f"events {{ {at}{stats} }}"


def _value(value: Any) -> str:
    if isinstance(value, str):
        return f"str_value: {_quoted(value)}"
    return f"double_value: {float(value)!r}"


def _metadata(field: str, numbers: Mapping[str, int]) -> Iterable[str]:
    for name, number in numbers.items():
        yield f"{field} {{ key: {number} value {{ id: {number} name: {_quoted(name)} }} }}"


def _quoted(text: str) -> str:
    """A string of the text format, with octal escapes."""
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03o}" for b in text.encode())
    return f'"{"".join(plain)}"'
