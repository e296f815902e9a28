"""Reader of `.xplane.pb`, the profile written by `jax.profiler`.

The file is an `XSpace` message of tsl/profiler/protobuf/xplane.proto. It contains the compiled
programs as `HloProto` messages (xla/service/hlo.proto), from which ops get their name stacks.
Fields are read by number, as no package with these messages is required.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from partir_search.aot.protobuf import Message

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
    planes = Message(data).messages(1)
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


def _events(plane: Message) -> Iterator[tuple[str, str, float, str]]:
    """(program, op, seconds, name stack) of each run of an op in a plane."""
    names = {m.number(1): m for m in plane.map(4)}
    stats = {m.number(1): m.text(2) for m in plane.map(5)}
    for line in plane.messages(3):
        if plane.text(2).startswith("/device:") and line.text(2) != "XLA Ops":
            continue
        for event in line.messages(4):
            kind = names.get(event.number(1), Message(b""))
            given = _stats([*kind.messages(5), *event.messages(4)], stats)
            name = given.get("hlo_op") or _leading_name(kind.text(2))
            module = str(given.get("hlo_module", ""))
            if not (module or given.get("tf_op")) or not name:
                continue
            if "program_id" in given:
                module = f"{module}({given['program_id']})"
            yield module, str(name), event.number(3) * 1e-12, str(given.get("tf_op", ""))


def _programs(plane: Message) -> Iterator[tuple[str, dict[str, tuple[str, str]]]]:
    """(program, (opcode, name stack) of its ops by name) for the programs of a metadata plane."""
    stats = {m.number(1): m.text(2) for m in plane.map(5)}
    for kind in plane.map(4):
        proto = _stats(kind.messages(5), stats).get("Hlo Proto")
        if not isinstance(proto, memoryview):
            continue
        ops: dict[str, tuple[str, str]] = {}
        for module in Message(proto).messages(1):
            for computation in module.messages(3):
                for op in computation.messages(2):
                    scope = next((m.text(2) for m in op.messages(7)), "")
                    ops[op.text(1)] = op.text(2), scope
        yield kind.text(2), ops


def _stats(stats: list[Message], names: Mapping[int, str]) -> dict[str, Any]:
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
