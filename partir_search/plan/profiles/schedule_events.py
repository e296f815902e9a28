"""Schedule of a pipeline as trace events: a track for each stage, a span for each item and wait."""

from __future__ import annotations

from typing import Any

from partir_search.ir.pipeline_picture import Span, spans
from partir_search.ir.pipeline_schedule import BACKWARD, FORWARD, WEIGHTS, PipelineSchedule

PROCESS = 2  # beside the process of the step
# Names of colours in the format's viewers.
COLORS = {FORWARD: "rail_response", BACKWARD: "rail_animation", WEIGHTS: "rail_load"}
IDLE_COLOR = "grey"


def schedule_events(schedule: PipelineSchedule, seconds: float) -> list[dict[str, Any]]:
    """Events of a schedule, its ticks scaled to `seconds`; items of one kind are equally long."""
    scale = 1e6 * seconds / schedule.seconds()
    share = f"{schedule.idle_fraction():.1%}"
    name = f"schedule of the pipeline, idle {share} (ticks scaled to the step)"
    events = [_named("process_name", 0, name)]
    events += [_named("thread_name", s, f"stage {s}") for s in range(schedule.stages)]
    found = spans(schedule, schedule.unit_seconds)
    return events + [_complete(span, scale, schedule) for span in found if span.stop > span.start]


def _named(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": PROCESS, "tid": track, "name": kind, "args": {"name": name}}


def _complete(span: Span, scale: float, schedule: PipelineSchedule) -> dict[str, Any]:
    name, args = "idle", dict[str, int]()
    if span.item is not None:
        args = {"microbatch": span.item.microbatch}
        name = f"{span.kind}{span.item.microbatch}"
        if schedule.chunks > 1:
            name, args["chunk"] = f"{name}/{span.item.chunk}", span.item.chunk
    return {
        "ph": "X",
        "pid": PROCESS,
        "tid": span.device,
        "name": name,
        "ts": span.start * scale,
        "dur": (span.stop - span.start) * scale,
        "cname": IDLE_COLOR if span.item is None else COLORS[span.kind],
        "args": args,
    }
