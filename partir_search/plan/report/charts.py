"""SVG charts of the report page: timeline, memory and search progress."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from partir_search.messages.wording import amount, duration
from partir_search.simulator.timeline import COMPUTE, Event, Timeline

WIDTH, LEFT, RIGHT = 1040, 130, 16
COLORS = ("#c2410c", "#0f766e", "#7c3aed", "#be185d", "#1d4ed8", "#4d7c0f")
BLUE, FAINT = "#2563eb", "#93b4f5"
MIN_EVENT_PIXELS = 0.35  # pixels: shorter events are merged


def _svg(height: float, body: str, label: str) -> str:
    box = f"0 0 {WIDTH} {height:.0f}"
    return f'<svg viewBox="{box}" role="img" aria-label="{escape(label)}">{body}</svg>'


def _text(x: float, y: float, text: str, anchor: str = "start", style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {style}>{escape(text)}</text>'


def _axis(y: float, seconds: float) -> str:
    """A time axis with five labels."""
    out = [f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" class="axis"/>']
    for i in range(6):
        x = LEFT + (WIDTH - LEFT - RIGHT) * i / 5
        anchor = "end" if i == 5 else "middle"
        out.append(_text(x, y + 16, duration(seconds * i / 5), anchor))
    return "".join(out)


def timeline_chart(timeline: Timeline) -> str:
    """Chart with a lane for compute and a lane for each set of mesh axes.

    Exposed seconds of a collective are opaque, hidden seconds faint.
    """
    lanes = [COMPUTE, *dict.fromkeys(e.lane for e in timeline.events if e.lane != COMPUTE)]
    scale = (WIDTH - LEFT - RIGHT) / max(timeline.seconds, 1e-12)
    out = []
    for row, lane in enumerate(lanes):
        y = 6 + 34 * row
        out.append(_text(LEFT - 8, y + 18, lane, "end"))
        out.append(
            f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - RIGHT}" height="26" class="lane"/>'
        )
        color = BLUE if lane == COMPUTE else COLORS[(row - 1) % len(COLORS)]
        for event in _drawn([e for e in timeline.events if e.lane == lane], scale):
            out.append(_bar(event, y, scale, color))
    bottom = 10 + 34 * len(lanes)
    return _svg(bottom + 22, "".join(out) + _axis(bottom, timeline.seconds), "timeline of a step")


def _bar(e: Event, y: float, scale: float, color: str) -> str:
    x, width = LEFT + e.start * scale, max(e.seconds * scale, 0.4)
    hidden = max(e.seconds - e.exposed, 0.0)
    title = f"{e.kind}: {duration(e.seconds)}"
    title += f", {duration(hidden)} hidden" if hidden > 1e-12 and e.lane != COMPUTE else ""
    title += f"\n{e.source}" if e.source else ""
    faint = hidden * scale
    place = f'x="{x:.2f}" y="{y + 2}" width="{width:.2f}" height="22"'
    shapes = f'<rect {place} fill="{color}" opacity=".35"/>'
    if width - faint > 0:
        shapes += (
            f'<rect x="{x + faint:.2f}" y="{y + 2}" width="{width - faint:.2f}" height="22"'
            f' fill="{color}"/>'
        )
    return f"<g><title>{escape(title)}</title>{shapes}</g>"


def _drawn(events: Sequence[Event], scale: float) -> list[Event]:
    """Events of one lane, with runs of events shorter than MIN_EVENT_PIXELS merged."""
    out: list[Event] = []
    for e in events:
        last = out[-1] if out else None
        short = e.seconds * scale < MIN_EVENT_PIXELS
        if last and short and last.kind.startswith("several") and last.seconds * scale < 4:
            end = max(last.start + last.seconds, e.start + e.seconds)
            exposed = last.exposed + e.exposed
            out[-1] = Event(e.lane, last.kind, last.start, end - last.start, exposed, "")
        elif short:
            kind = "several short ones" if e.lane == COMPUTE else f"several, {e.kind} first"
            out.append(Event(e.lane, kind, e.start, e.seconds, e.exposed, ""))
        else:
            out.append(e)
    return out


def memory_chart(timeline: Timeline, limit: float) -> str:
    """Live bytes over the step, with lines for the peak, the arguments and the limit."""
    if not timeline.memory:
        return ""
    height, scale = 190.0, (WIDTH - LEFT - RIGHT) / max(timeline.seconds, 1e-12)
    most = max(b for _, b in timeline.memory)
    shown = limit if most * 0.4 < limit < most * 2.5 else most * 1.12

    def y(nbytes: float) -> float:
        return 10 + (height - 10) * (1 - nbytes / max(shown, most, 1))

    points = [f"{LEFT},{height}"]
    before = timeline.memory[0][1]
    for seconds, nbytes in timeline.memory:
        x = LEFT + min(seconds, timeline.seconds) * scale
        points += [f"{x:.1f},{y(before):.1f}", f"{x:.1f},{y(nbytes):.1f}"]
        before = nbytes
    points += [f"{WIDTH - RIGHT},{y(before):.1f}", f"{WIDTH - RIGHT},{height}"]
    lines = [(most, f"peak {amount(most)}"), (timeline.argument_bytes, "arguments")]
    lines += [(limit, f"limit {amount(limit)}")] if limit <= shown else []
    out = [f'<polygon points="{" ".join(points)}" fill="{FAINT}" stroke="{BLUE}"/>']
    for nbytes, name in lines:
        at = y(nbytes)
        out.append(
            f'<line x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}" class="mark"/>'
        )
        out.append(_text(LEFT - 8, at + 4, name, "end"))
    return _svg(
        height + 26, "".join(out) + _axis(height, timeline.seconds), "live memory of a step"
    )


def progress_chart(history: Sequence[tuple[int, float]], episodes: int) -> str:
    """Best seconds per step over the episodes of a search."""
    height = 150.0
    best, worst = min(s for _, s in history), max(s for _, s in history)
    scale = (WIDTH - LEFT - RIGHT) / max(episodes, 1)

    def y(seconds: float) -> float:
        return 14 + (height - 30) * (1 - (seconds - best) / max(worst - best, 1e-12))

    points, before = [], history[0][1]
    for at, seconds in history:
        x = LEFT + at * scale
        points += [f"{x:.1f},{y(before):.1f}", f"{x:.1f},{y(seconds):.1f}"]
        before = seconds
    points.append(f"{WIDTH - RIGHT},{y(before):.1f}")
    out = [f'<polyline points="{" ".join(points)}" fill="none" stroke="{BLUE}" stroke-width="2"/>']
    out.append(_text(LEFT - 8, y(best) + 4, duration(best), "end"))
    if worst > best:
        out.append(_text(LEFT - 8, y(worst) + 4, duration(worst), "end"))
    out.append(f'<line x1="{LEFT}" y1="{height}" x2="{WIDTH - RIGHT}" y2="{height}" class="axis"/>')
    out.append(_text(LEFT, height + 16, "0"))
    out.append(_text(WIDTH - RIGHT, height + 16, f"{episodes} episodes", "end"))
    return _svg(height + 24, "".join(out), "progress of the search")
