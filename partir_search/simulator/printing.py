"""Text forms of the simulator's results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MAX_ROWS = 40


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Text of a table: a title, a head and the first `MAX_ROWS` rows in aligned columns."""
    cells = [[_text(x) for x in row] for row in rows]
    shown = [list(head), *cells[:MAX_ROWS]]
    widths = [max(len(row[i]) for row in shown) for i in range(len(head))]
    lines = ["  ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)) for row in shown]
    omitted = [f"... {len(cells) - MAX_ROWS} more"] if len(cells) > MAX_ROWS else []
    return "\n".join([title, *(f"  {line.rstrip()}" for line in (*lines, *omitted))])


def _text(x: object) -> str:
    return f"{x:.6g}" if isinstance(x, float) else str(x)
