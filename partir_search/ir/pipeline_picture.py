"""Pictures of pipelines: devices by ticks, as rows of text and as spans of seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from partir_search.ir.pipeline_schedule import Item, PipelineSchedule


class Span(NamedTuple):
    """Seconds of one kind of work on a device; `item` is None in the bubble."""

    device: int
    kind: str
    item: Item | None
    start: float
    stop: float


def spans(schedule: PipelineSchedule, of_kind: Mapping[str, float]) -> tuple[Span, ...]:
    """Spans of all devices, in the order of device and time; equal phases take equal seconds.

    Args:
      of_kind: seconds of one item of each kind.
    """
    found = []
    for device in range(schedule.stages):
        now = 0.0
        for phase in schedule.phases():
            for tick in range(phase.start, phase.stop):
                for kind in phase.kinds:
                    item = schedule.item(kind, device, tick)
                    found.append(Span(device, kind, item, now, now + of_kind[kind]))
                    now += of_kind[kind]
    return tuple(found)


def picture(schedule: PipelineSchedule, ticks: int | None = None) -> str:
    """Rows of devices by ticks: `F3` is F of microbatch 3, `F3/1` of its chunk 1, dots idle.

    Bars divide the phases.

    Args:
      ticks: most ticks that are shown; all without. A cut picture ends with `...`.
    """
    last = schedule.ticks if ticks is None else min(ticks, schedule.ticks)
    width = len(_cell("F", Item(schedule.chunks - 1, schedule.microbatches - 1), schedule))
    name = len(str(schedule.stages - 1))
    rows = []
    for device in range(schedule.stages):
        row = [f"{device:>{name}}"]
        for phase in schedule.phases():
            cells = [
                _cell(kind, schedule.item(kind, device, tick), schedule).ljust(width, " ")
                for tick in range(phase.start, min(phase.stop, last))
                for kind in phase.kinds
            ]
            row += [" ".join(cells)] if cells else []
        rows.append(" | ".join(row) + (" ..." if last < schedule.ticks else " |"))
    idle = f"idle {schedule.idle_fraction():.1%}"
    return "\n".join([*rows, f"{schedule.ticks} ticks, {idle}"])


def _cell(kind: str, item: Item | None, schedule: PipelineSchedule) -> str:
    if item is None:
        return "."
    return f"{kind}{item.microbatch}" + (f"/{item.chunk}" if schedule.chunks > 1 else "")
