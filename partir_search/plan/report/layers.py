"""Layers of a simulated step: intervals that repeat, of which one is drawn in detail."""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Iterable, Sequence

from partir_search.messages.number_groups import number_groups
from partir_search.simulator.timeline import COMPUTE, Event, Timeline

LEAST = 3  # layers that are alike
ALIKE = 0.05  # relative difference of seconds between layers that are alike
_LAST_NUMBER = re.compile(r"\d+(?=\D*$)")


@dataclasses.dataclass(frozen=True)
class Layer:
    """Interval of one pass through a layer.

    Attributes:
      name: path of the layer; for layers of several blocks, `encoder/*_3`.
      start, end: seconds since the start of the step.
    """

    name: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Duration."""
        return self.end - self.start


@dataclasses.dataclass(frozen=True)
class Layers:
    """Layers of one pass.

    Attributes:
      backward: True for the backward pass.
      alike: layers of nearly equal seconds, in order of start.
      different: further layers of the same pass.
    """

    backward: bool
    alike: tuple[Layer, ...]
    different: tuple[Layer, ...]

    @property
    def drawn(self) -> Layer:
        """The layer in the middle of those alike."""
        return self.alike[len(self.alike) // 2]

    @property
    def label(self) -> str:
        """`forward of layer_{1..31}`."""
        names = sorted(layer.name for layer in self.alike)
        label = ", ".join(label for label, _, _ in number_groups((name, 0) for name in names))
        return f"{'backward' if self.backward else 'forward'} of {label}"


def layers_of(timeline: Timeline) -> list[Layers]:
    """Repeated layers by pass, in order of start; [] for a step without layers."""
    found: dict[tuple[str, bool], dict[int, Layer]] = {}
    for home, number, layer in _runs(timeline.events):
        known = found.setdefault(home, {})
        if number not in known or known[number].seconds < layer.seconds:
            known[number] = layer
    groups = []
    for (_, backward), numbered in found.items():
        layers = sorted(numbered.values(), key=lambda layer: layer.start)
        usual = statistics.median(layer.seconds for layer in layers)
        alike = tuple(x for x in layers if abs(x.seconds - usual) <= ALIKE * usual)
        if len(alike) >= LEAST:
            groups.append(Layers(backward, alike, tuple(x for x in layers if x not in alike)))
    return sorted(groups, key=lambda group: group.alike[0].start)


def window(timeline: Timeline, start: float, end: float) -> Timeline:
    """The part of a timeline between two times, counted from `start`."""
    events = []
    for e in timeline.events:
        begin, stop = max(e.start, start), min(e.start + e.seconds, end)
        if stop > begin:
            exposed = e.exposed * (stop - begin) / e.seconds
            seconds = stop - begin
            events.append(
                dataclasses.replace(e, start=begin - start, seconds=seconds, exposed=exposed)
            )
    before = [nbytes for at, nbytes in timeline.memory if at < start][-1:]
    inside = [(at - start, nbytes) for at, nbytes in timeline.memory if start <= at < end]
    memory = [*((0.0, nbytes) for nbytes in before), *inside]
    return dataclasses.replace(
        timeline, seconds=end - start, events=tuple(events), memory=tuple(memory)
    )


def _runs(events: Sequence[Event]) -> list[tuple[tuple[str, bool], int, Layer]]:
    """Runs of compute within one layer: (path above and pass, number, interval)."""
    runs: list[tuple[tuple[str, bool], int, list[Event], list[str]]] = []
    repeated = _repeated({e.path for e in events})
    for e in events:
        place = _numbered(e.path, repeated) if e.lane == COMPUTE else None
        if place is None:
            continue
        above, number, name = place
        key = above, e.backward
        if runs and runs[-1][:2] == (key, number):
            runs[-1][2].append(e)
            runs[-1][3].append(name)
        else:
            runs.append((key, number, [e], [name]))
    out = []
    for key, number, members, names in runs:
        above = f"{key[0]}/" if key[0] else ""
        name = names[0] if len({*names}) == 1 else f"*_{number}"
        end = max(e.start + e.seconds for e in members)
        out.append((key, number, Layer(above + name, members[0].start, end)))
    return out


def _repeated(paths: Iterable[Sequence[str]]) -> set[tuple[str, str]]:
    """(path above, name without its number) of blocks with numbers enough for layers."""
    numbers: dict[tuple[str, str], set[str]] = {}
    for path in paths:
        for depth, part in enumerate(path):
            if number := _LAST_NUMBER.search(part):
                key = "/".join(path[:depth]), _LAST_NUMBER.sub("#", part)
                numbers.setdefault(key, set()).add(number[0])
    return {key for key, found in numbers.items() if len(found) >= LEAST}


def _numbered(path: Sequence[str], repeated: set[tuple[str, str]]) -> tuple[str, int, str] | None:
    """(path above, number, name) of the outermost repeated block."""
    for depth, part in enumerate(path):
        above, number = "/".join(path[:depth]), _LAST_NUMBER.search(part)
        if number and (above, _LAST_NUMBER.sub("#", part)) in repeated:
            return above, int(number[0]), part
    return None
