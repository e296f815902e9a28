"""Profiles as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from partir_search.messages.console import new_table
from partir_search.messages.wording import duration
from partir_search.profile.entries import (
    Group,
    MeasuredCollective,
    MeasuredProduct,
    MeasuredSegment,
)


def tables(
    rates: Mapping[str, float],
    collectives: Sequence[MeasuredCollective],
    products: Sequence[MeasuredProduct],
    segments: Mapping[str, MeasuredSegment],
) -> Iterator[Any]:
    """Tables of a profile's figures, for a console of rich."""
    if rates:
        yield ", ".join(f"{name} {value:.4g}" for name, value in rates.items())
    if collectives:
        found = _table("collectives", "kind", "devices", "group", "alpha", "GB/s", "worst fit")
        for c in collectives:
            rate = f"{1e-9 / c.beta:.3g}" if c.beta else "-"
            fits = ((c.alpha + c.beta * b) / s for b, s in zip(c.nbytes, c.seconds, strict=True))
            worst = max(fits, key=lambda r: max(r, 1 / r), default=1.0)
            group = pattern(c.group)
            found.add_row(c.kind, f"{c.devices}", group, duration(c.alpha), rate, f"{worst:.2f}")
        yield found
    if products:
        found = _table("products", "type", "batch", "m", "n", "k", "GFLOP/s")
        for p in products:
            found.add_row(p.dtype, *map(str, p.shape), f"{p.flops_per_s / 1e9:.4g}")
        yield found
    if segments:
        found = _table("segments", "segment", "by", "measured", "simulated", "ratio", "spread")
        for key, s in segments.items():
            ratio = f"{s.seconds / s.simulated:.2f}" if s.simulated else "-"
            times = duration(s.seconds), duration(s.simulated), ratio, f"{s.spread:.0%}"
            found.add_row(f"{s.label or key[:12]}", s.by, *times)
        yield found


def _table(title: str, *columns: str) -> Any:
    found = new_table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        found.add_column(column, justify="right" if i else "left")
    return found


def pattern(group: Group) -> str:
    """Text of a grouping pattern: ``4 by 2`` are 4 devices, each the second of the mesh."""
    return " x ".join(f"{size} by {stride}" for size, stride in group)
