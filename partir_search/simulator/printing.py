"""Text forms of the simulator's results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

LINES = 40  # most printed rows of a table


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Text of a table: a title, a head and the first `LINES` rows in aligned columns."""
    cells = [[_text(x) for x in row] for row in rows]
    shown = [list(head), *cells[:LINES]]
    widths = [max(len(row[i]) for row in shown) for i in range(len(head))]
    lines = ["  ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)) for row in shown]
    left = [f"... {len(cells) - LINES} more"] if len(cells) > LINES else []
    return "\n".join([title, *(f"  {line.rstrip()}" for line in (*lines, *left))])


def _text(x: object) -> str:
    return f"{x:.6g}" if isinstance(x, float) else str(x)
