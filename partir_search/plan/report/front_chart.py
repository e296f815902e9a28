"""SVG chart of a front: a point per plan, seconds against peak bytes."""

from __future__ import annotations

from typing import Any

from partir_search.messages.wording import amount, duration
from partir_search.plan.front import Front, FrontPoint
from partir_search.plan.report.charts import BLUE, LEFT, RIGHT, WIDTH, svg, text, titled

HEIGHT, TOP = 240.0, 14.0
RED = "#dc2626"
MARGIN = 0.06  # of the range of a figure, beside the outermost points


def front_chart(front: Front[Any]) -> str:
    """Chart of a front, with the memory limit as a line if near the points; "" without points.

    Points beyond the limit are red, the chosen one is larger.
    """
    if not front:
        return ""
    seconds, nbytes = ([f(p) for p in front] for f in (_seconds, _bytes))
    shown = 0.5 * min(nbytes) < front.limit < 1.5 * max(nbytes)
    left, right = _range([*nbytes, *([front.limit] if shown else [])])
    low, high = _range(seconds)

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - left) / (right - left)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP) * (1 - (value - low) / (high - low))

    steps = [f"{x(p.peak_bytes):.1f},{y(p.seconds):.1f}" for p in front]
    out = [f'<polyline points="{" ".join(steps)}" fill="none" stroke="{BLUE}" opacity=".35"/>']
    if shown:
        at = x(front.limit)
        out.append(f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT}" class="mark"/>')
        out.append(text(at - 4, TOP + 10, f"limit {amount(front.limit)}", "end"))
    for p in front:
        place = f'cx="{x(p.peak_bytes):.1f}" cy="{y(p.seconds):.1f}" r="{7 if p.chosen else 4}"'
        color = BLUE if p.fits else RED
        out.append(titled(_words(p), f'<circle {place} fill="{color}"/>'))
    axis = f'<line x1="{LEFT}" y1="{HEIGHT}" x2="{WIDTH - RIGHT}" y2="{HEIGHT}" class="axis"/>'
    for value in (min(nbytes), max(nbytes)):
        out.append(text(x(value), HEIGHT + 16, amount(value), "middle"))
    for value in dict.fromkeys((min(seconds), max(seconds))):
        out.append(text(LEFT - 8, y(value) + 4, duration(value), "end"))
    return svg(HEIGHT + 24, "".join(out) + axis, "seconds against memory of the front")


def _seconds(point: FrontPoint[Any]) -> float:
    return point.seconds


def _bytes(point: FrontPoint[Any]) -> float:
    return point.peak_bytes


def _range(values: list[float]) -> tuple[float, float]:
    """Ends of an axis that shows some values."""
    low, high = min(values), max(values)
    margin = MARGIN * (high - low) or MARGIN * abs(high) or 1.0
    return low - margin, high + margin


def _words(p: FrontPoint[Any]) -> str:
    """Text shown at a point."""
    again = f", {len(p.remat)} segments computed again" if p.remat else ""
    fits = "" if p.fits else ", does not fit"
    chosen = " (chosen)" if p.chosen else ""
    return f"{duration(p.seconds)}, {amount(p.peak_bytes)}{fits}{chosen}\n{p.strategy}{again}"
