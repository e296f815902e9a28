"""SVG charts of the report page: timeline, memory and search progress."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence
from html import escape

from partir_search.messages.wording import amount, duration
from partir_search.simulator.timeline import COMPUTE, Event, Timeline

WIDTH, LEFT, RIGHT = 1040, 130, 16
COLORS = ("#c2410c", "#0f766e", "#7c3aed", "#be185d", "#1d4ed8", "#4d7c0f")
BLUE = "#2563eb"
WIDE_LETTER = 7.5  # pixels: a bar wider than its text shows it
GAP = 0.7  # pixels between neighbouring bars
LEAST_HATCHED = 2.0  # pixels of hidden seconds with a pattern
MERGED_PIXELS = 4.0  # pixels over which neighbouring events are merged into one


def svg(height: float, body: str, label: str) -> str:
    """An SVG picture of the page's width."""
    box = f"0 0 {WIDTH} {height:.0f}"
    return f'<svg viewBox="{box}" role="img" aria-label="{escape(label)}">{body}</svg>'


def text(x: float, y: float, words: str, anchor: str = "start", style: str = "") -> str:
    """Text of a picture."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {style}>{escape(words)}</text>'


def titled(words: str, shapes: str) -> str:
    """Shapes of a picture with a text shown on hover."""
    return f"<g><title>{escape(words)}</title>{shapes}</g>"


def round_ticks(most: float, count: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from 0 to `most`, about `count` in number."""
    if most <= 0:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(most / count))
    step = next(n * power for n in (1, 2, 5, 10) if most / (n * power) <= count)
    return [i * step for i in range(int(most / step * (1 + 1e-9)) + 1)]


def _axis(y: float, seconds: float) -> str:
    """A time axis with labels at round numbers."""
    out = [f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" class="axis"/>']
    for tick in round_ticks(seconds):
        x = LEFT + (WIDTH - LEFT - RIGHT) * tick / max(seconds, 1e-12)
        out.append(f'<line x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{y + 4}" class="axis"/>')
        anchor = "end" if x > WIDTH - RIGHT - 20 else "middle"
        out.append(text(x, y + 17, duration(tick), anchor))
    return "".join(out)


@dataclasses.dataclass(frozen=True)
class Band:
    """Intervals of a step with a name, drawn above its lanes; a click leads to `target`."""

    name: str
    target: str
    intervals: tuple[tuple[str, float, float], ...]  # (name, start, end)


def timeline_chart(timeline: Timeline, bands: Sequence[Band] = ()) -> str:
    """Chart with a lane for compute and a lane for each set of mesh axes, below bands.

    Exposed seconds of a collective are opaque, hidden seconds faint and hatched.
    """
    lanes = [COMPUTE, *dict.fromkeys(e.lane for e in timeline.events if e.lane != COMPUTE)]
    scale = (WIDTH - LEFT - RIGHT) / max(timeline.seconds, 1e-12)
    out = [_band(band, scale) for band in bands]
    top = 30 if bands else 6
    for row, lane in enumerate(lanes):
        y = top + 34 * row
        out.append(text(LEFT - 8, y + 18, lane, "end"))
        out.append(
            f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - RIGHT}" height="26" class="lane"/>'
        )
        color = BLUE if lane == COMPUTE else COLORS[(row - 1) % len(COLORS)]
        drawn = _drawn([e for e in timeline.events if e.lane == lane], scale)
        out += [_bar(event, y, scale, color) for event in drawn]
        out.append(_hatched(drawn, y, scale) if lane != COMPUTE else "")
    bottom = top + 4 + 34 * len(lanes)
    return svg(bottom + 22, "".join(out) + _axis(bottom, timeline.seconds), "timeline of a step")


def _band(band: Band, scale: float) -> str:
    """Alternating rectangles with the band's name over their middle."""
    out = []
    for i, (name, start, end) in enumerate(band.intervals):
        place = f'x="{LEFT + start * scale:.1f}" y="4" width="{(end - start) * scale:.1f}"'
        shade = "even" if i % 2 else "odd"
        words = f"{name}: {duration(end - start)}"
        out.append(titled(words, f'<rect {place} height="18" class="band {shade}"/>'))
    first, last = band.intervals[0][1], max(end for _, _, end in band.intervals)
    if (last - first) * scale > WIDE_LETTER * len(band.name):
        out.append(text(LEFT + (first + last) / 2 * scale, 17, band.name, "middle", 'class="on"'))
    return f'<a href="#{band.target}">{"".join(out)}</a>'


def _bar(e: Event, y: float, scale: float, color: str) -> str:
    x, width = LEFT + e.start * scale, max(e.seconds * scale, 0.4)
    width -= GAP if width > MERGED_PIXELS else 0.0
    hidden = max(e.seconds - e.exposed, 0.0)
    title = f"{e.kind}: {duration(e.seconds)}"
    title += f", {duration(hidden)} hidden" if hidden > 1e-12 and e.lane != COMPUTE else ""
    title += f"\n{e.source}" if e.source else ""
    faint = min(hidden * scale, width)
    place = f'x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="22"'
    shapes = f'<rect {place} fill="{color}" opacity=".35"/>'
    if width - faint > 0:
        shapes += (
            f'<rect x="{x + faint:.1f}" y="{y + 2}" width="{width - faint:.1f}" height="22"'
            f' fill="{color}"/>'
        )
    if width > WIDE_LETTER * len(e.kind):
        shapes += text(x + width / 2, y + 17, e.kind, "middle", 'class="in"')
    return titled(title, shapes)


def _hatched(events: Sequence[Event], y: float, scale: float) -> str:
    """A pattern over the hidden seconds of a lane's events, for eyes that see no faint colour."""
    parts = [
        f"M{LEFT + e.start * scale:.1f} {y + 2}h{hidden:.1f}v22h-{hidden:.1f}z"
        for e in events
        if (hidden := (e.seconds - e.exposed) * scale) >= LEAST_HATCHED
    ]
    return f'<path class="hatch" d="{"".join(parts)}"/>' if parts else ""


def _drawn(events: Sequence[Event], scale: float) -> list[Event]:
    """Events of one lane in order of start, with neighbours too short to see merged."""
    out: list[list[Event]] = []
    for e in sorted(events, key=lambda e: e.start):
        first = out[-1][0] if out else None
        if first and (e.start + e.seconds - first.start) * scale < MERGED_PIXELS:
            out[-1].append(e)
        else:
            out.append([e])
    return [_merged(group) for group in out]


def _merged(group: Sequence[Event]) -> Event:
    """One event in place of several, with the seconds of each kind as its own."""
    if len(group) == 1:
        return group[0]
    counts = collections.Counter(e.kind for e in group)
    kinds = [f"{n} {kind}" for kind, n in counts.most_common(3)]
    more = ["..."] if len(counts) > 3 else []
    start, end = group[0].start, max(e.start + e.seconds for e in group)
    exposed = min(sum(e.exposed for e in group), end - start)
    return Event(group[0].lane, ", ".join(kinds + more), start, end - start, exposed, "")


def memory_chart(timeline: Timeline, limit: float) -> str:
    """Live bytes over the step, with lines for the peak, the arguments and the limit."""
    if not timeline.memory:
        return ""
    height, scale = 210, (WIDTH - LEFT - RIGHT) / max(timeline.seconds, 1e-12)
    most = max(b for _, b in timeline.memory)
    shown = limit if most * 0.4 < limit < most * 2.5 else most * 1.12

    def y(nbytes: float) -> float:
        return 24 + (height - 24) * (1 - nbytes / max(shown, most, 1))

    points = [f"{LEFT},{height}"]
    before = timeline.memory[0][1]
    for x, low, high, last in _by_pixel(timeline, scale):
        levels = dict.fromkeys(f"{y(nbytes):.0f}" for nbytes in (before, low, high))
        points += [f"{x},{level}" for level in levels]
        points.append(f"{x},{y(last):.0f}")
        before = last
    points += [f"{WIDTH - RIGHT},{y(before):.0f}", f"{WIDTH - RIGHT},{height}"]
    top = max(shown, most)
    out: list[str] = []
    for tick in round_ticks(top, 4):
        at = y(tick)
        ends = f'x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"'
        out += [f'<line {ends} class="grid"/>', text(LEFT - 8, at + 4, amount(tick), "end")]
    out.append(f'<polygon points="{" ".join(points)}" class="filled"/>')
    lines = [(most, f"peak {amount(most)}"), (timeline.argument_bytes, "arguments")]
    lines += [(limit, f"limit {amount(limit)}")] if limit <= shown else []
    labels: list[str] = []  # above every line and area
    lowest = 0.0
    for nbytes, name in sorted(lines, reverse=True):
        at = y(nbytes)
        lowest = max(at - 4, lowest + 13)
        labels.append(text(WIDTH - RIGHT - 6, lowest, name, "end", 'class="over"'))
        out.append(
            f'<line x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}" class="mark"/>'
        )
    out += labels
    return svg(height + 26, "".join(out) + _axis(height, timeline.seconds), "live memory of a step")


def _by_pixel(timeline: Timeline, scale: float) -> list[tuple[int, float, float, float]]:
    """(x, lowest, highest, last bytes) of each pixel with changes of the live bytes."""
    found: dict[int, tuple[float, float, float]] = {}
    for seconds, nbytes in timeline.memory:
        x = round(LEFT + min(seconds, timeline.seconds) * scale)
        low, high, _ = found.get(x, (nbytes, nbytes, nbytes))
        found[x] = min(low, nbytes), max(high, nbytes), nbytes
    return [(x, *of) for x, of in found.items()]


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
    out.append(text(LEFT - 8, y(best) + 4, duration(best), "end"))
    if worst > best:
        out.append(text(LEFT - 8, y(worst) + 4, duration(worst), "end"))
    out.append(f'<line x1="{LEFT}" y1="{height}" x2="{WIDTH - RIGHT}" y2="{height}" class="axis"/>')
    out.append(text(LEFT, height + 16, "0"))
    out.append(text(WIDTH - RIGHT, height + 16, f"{episodes} episodes", "end"))
    return svg(height + 24, "".join(out), "progress of the search")
