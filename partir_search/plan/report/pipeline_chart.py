"""SVG chart of a pipeline: devices by seconds, coloured by the kind of work."""

from __future__ import annotations

from collections.abc import Mapping

from partir_search.ir.pipeline_picture import Span, spans
from partir_search.ir.pipeline_schedule import BACKWARD, FORWARD, WEIGHTS, PipelineSchedule
from partir_search.messages.wording import duration
from partir_search.plan.report.charts import LEFT, RIGHT, WIDE_LETTER, WIDTH, svg, text, titled

COLORS = {FORWARD: "#2563eb", BACKWARD: "#0f766e", WEIGHTS: "#7c3aed"}
NAMES = {FORWARD: "forward", BACKWARD: "backward", WEIGHTS: "gradients of weights"}
IDLE = "#e7e5e4"
HEIGHT, GAP = 18, 4  # pixels of a device's lane, and between lanes
MOST_BARS = 300  # of a device; later ones are cut off
PALEST = 0.45  # opacity of the last chunk; the first is opaque


def pipeline_chart(schedule: PipelineSchedule, of_kind: Mapping[str, float] | None = None) -> str:
    """Chart with a lane for each device, a bar for each item and its microbatch in it.

    Chunks differ in opacity. A long schedule is cut after `MOST_BARS` bars of a device.

    Args:
      of_kind: seconds of one item of each kind; units of F without.
    """
    costs = of_kind or schedule.unit_seconds
    found = spans(schedule, costs)
    of_device = len(found) // schedule.stages
    shown = min(of_device, MOST_BARS)
    end = found[shown - 1].stop
    scale = (WIDTH - LEFT - RIGHT) / end
    out = [_legend(schedule)]
    for device in range(schedule.stages):
        y = 24 + (HEIGHT + GAP) * device
        out.append(text(LEFT - 8, y + 13, f"stage {device}", "end"))
        width = WIDTH - LEFT - RIGHT
        out.append(f'<rect x="{LEFT}" y="{y}" width="{width}" height="{HEIGHT}" fill="{IDLE}"/>')
        mine = found[device * of_device : device * of_device + shown]
        out += [_bar(span, y, scale, schedule, of_kind is not None) for span in mine if span.item]
    words = f"idle {schedule.idle_fraction(costs):.1%} of {schedule.ticks} ticks"
    words += f", {duration(schedule.seconds(costs))}" if of_kind else ""
    words += f"; the first {shown} of {of_device} bars" if shown < of_device else ""
    bottom = 24 + (HEIGHT + GAP) * schedule.stages
    out.append(text(LEFT, bottom + 14, words))
    return svg(bottom + 22, "".join(out), f"schedule of a pipeline, {words}")


def _bar(span: Span, y: float, scale: float, schedule: PipelineSchedule, timed: bool) -> str:
    assert span.item
    chunk, microbatch = span.item
    x, width = LEFT + scale * span.start, scale * (span.stop - span.start)
    faint = (1 - PALEST) * chunk / max(schedule.chunks - 1, 1)
    shape = (
        f'<rect x="{x:.1f}" y="{y}" width="{max(width - 0.7, 0.3):.1f}" height="{HEIGHT}"'
        f' fill="{COLORS[span.kind]}" opacity="{1 - faint:.2f}"/>'
    )
    if width > WIDE_LETTER * (len(str(microbatch)) + 0.5):
        style = 'style="fill:#fff;font-size:11px"'  # over the page's own
        shape += text(x + width / 2, y + 13, str(microbatch), "middle", style)
    words = f"{NAMES[span.kind]} of microbatch {microbatch}"
    words += f", chunk {chunk}" if schedule.chunks > 1 else ""
    words += f": {duration(span.stop - span.start)}" if timed else ""
    return titled(words, shape)


def _legend(schedule: PipelineSchedule) -> str:
    out, x = [], float(LEFT)
    for kind, color in [(NAMES[k], COLORS[k]) for k in schedule.kinds] + [("idle", IDLE)]:
        out.append(f'<rect x="{x:.1f}" y="4" width="12" height="12" fill="{color}"/>')
        out.append(text(x + 17, 14, kind))
        x += 32 + WIDE_LETTER * len(kind)
    return "".join(out)
