"""Reader of `.xplane.pb`, the profile written by `jax.profiler`.

The file is an `XSpace` message of tsl/profiler/protobuf/xplane.proto. It contains the compiled
programs as `HloProto` messages (xla/service/hlo.proto), from which ops get their name stacks.
Fields are read by number, as no package with these messages is required.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

_CONTAINERS = ("while", "conditional", "call")  # their time is that of the ops inside


@dataclasses.dataclass(slots=True)
class MeasuredOp:
    """Runs of one op of a compiled program, on all devices.

    Attributes:
      module: name of the compiled program, `jit_step`.
      name: name of the op, `fusion.3`.
      scope: name stack with the primitive, `jit(step)/forward/dot_general`; "" if unknown.
      seconds: total duration of all runs.
      runs: number of runs.
    """

    module: str
    name: str
    scope: str = ""
    seconds: float = 0.0
    runs: int = 0


def read_xplane(data: bytes) -> list[MeasuredOp]:
    """Ops measured in a profile."""
    planes = [_Message(v) for n, v in _fields(memoryview(data)) if n == 1]
    programs: dict[str, dict[str, tuple[str, str]]] = {}
    for plane in planes:
        if plane.text(2) == "/host:metadata":
            programs.update(_programs(plane))
    found: dict[tuple[str, str], MeasuredOp] = {}
    for plane in planes:
        for module, name, seconds, scope in _events(plane):
            known = programs.get(module, {})
            opcode, scope = known.get(name, ("", scope))
            if opcode in _CONTAINERS:
                continue
            plain = re.sub(r"\(\d+\)$", "", module)
            op = found.setdefault((module, name), MeasuredOp(plain, name, scope))
            op.seconds += seconds
            op.runs += 1
    return list(found.values())


def _events(plane: _Message) -> Iterator[tuple[str, str, float, str]]:
    """(program, op, seconds, name stack) of each run of an op in a plane."""
    names = {m.number(1): m for m in plane.map(4)}
    stats = {m.number(1): m.text(2) for m in plane.map(5)}
    for line in plane.messages(3):
        if plane.text(2).startswith("/device:") and line.text(2) != "XLA Ops":
            continue
        for event in line.messages(4):
            kind = names.get(event.number(1), _Message(b""))
            given = _stats([*kind.messages(5), *event.messages(4)], stats)
            name = given.get("hlo_op") or _leading_name(kind.text(2))
            module = str(given.get("hlo_module", ""))
            if not (module or given.get("tf_op")) or not name:
                continue
            if "program_id" in given:
                module = f"{module}({given['program_id']})"
            yield module, str(name), event.number(3) * 1e-12, str(given.get("tf_op", ""))


def _programs(plane: _Message) -> Iterator[tuple[str, dict[str, tuple[str, str]]]]:
    """(program, (opcode, name stack) of its ops by name) for the programs of a metadata plane."""
    stats = {m.number(1): m.text(2) for m in plane.map(5)}
    for kind in plane.map(4):
        proto = _stats(kind.messages(5), stats).get("Hlo Proto")
        if not isinstance(proto, memoryview):
            continue
        ops: dict[str, tuple[str, str]] = {}
        for module in _Message(proto).messages(1):
            for computation in module.messages(3):
                for op in computation.messages(2):
                    scope = next((m.text(2) for m in op.messages(7)), "")
                    ops[op.text(1)] = op.text(2), scope
        yield kind.text(2), ops


def _stats(stats: list[_Message], names: Mapping[int, str]) -> dict[str, Any]:
    """Values of `XStat` messages by name; a value is a number, bytes, text, or a reference."""
    found: dict[str, Any] = {}
    for stat in stats:
        name = names.get(stat.number(1), "")
        if stat.has(5):
            found[name] = stat.text(5)
        elif stat.has(6):
            found[name] = stat.first(6)
        elif stat.has(7):
            found[name] = names.get(stat.number(7), "")
        else:
            found[name] = stat.number(3) or stat.number(4)
    return found


def _leading_name(text: str) -> str:
    match = re.match(r"%?([\w.-]+)", text)
    return match[1] if match else ""


class _Message:
    """Fields of one message by number."""

    def __init__(self, data: Any) -> None:
        self._fields: dict[int, list[Any]] = collections.defaultdict(list)
        for number, value in _fields(memoryview(data)):
            self._fields[number].append(value)

    def has(self, number: int) -> bool:
        return number in self._fields

    def first(self, number: int) -> Any:
        return self._fields[number][0]

    def number(self, number: int) -> int:
        return int(self._fields[number][0]) if self.has(number) else 0

    def text(self, number: int) -> str:
        return bytes(self._fields[number][0]).decode() if self.has(number) else ""

    def messages(self, number: int) -> list[_Message]:
        return [_Message(v) for v in self._fields[number]] if self.has(number) else []

    def map(self, number: int) -> list[_Message]:
        """Values of a map field, entries of which are messages (key, value)."""
        return [_Message(entry.first(2)) for entry in self.messages(number) if entry.has(2)]


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """(number, value) of the fields of an encoded message.

    Raises:
      ValueError: the bytes are no message.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind not in (1, 2, 5):
            raise ValueError("not an encoded message")
        size = 8 if kind == 1 else 4
        if kind == 2:
            size, at = _varint(data, at)
        if at + size > len(data):
            raise ValueError("not an encoded message")
        yield number, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A variable-length integer, and the position after it."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
    raise ValueError("not an encoded message")
