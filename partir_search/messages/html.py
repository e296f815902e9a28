"""HTML of rich tables and text, for notebooks and the report page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

# Colors are the notebook's own, and lines grey, on light and dark backgrounds.
_STYLE = """
.partir{font-size:13px;line-height:1.45;max-width:100%}
.partir table{border-collapse:collapse;margin:6px 0;font-size:12px;color:inherit;
background:transparent}
.partir caption{caption-side:top;text-align:left;font-weight:600;padding:4px 0;color:inherit}
.partir th,.partir td{text-align:left;padding:2px 12px 2px 0;background:transparent;color:inherit;
border:0;border-bottom:1px solid rgba(128,128,128,.35);vertical-align:top;white-space:normal}
.partir th.n,.partir td.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.partir .note{opacity:.75;font-size:12px;margin:2px 0}
.partir .bad{font-weight:600;color:#dc2626}
.partir .scroll{overflow-x:auto}
.partir summary{cursor:pointer}
"""
STYLE = re.sub(r"\n", "", _STYLE)
MANY = 5  # columns, from which cells name their column, for screens that show a row as a list


def rows_html(
    rows: Sequence[Sequence[str]],
    head: Sequence[tuple[str, bool]],
    *,
    raw: int = -1,
    title: str = "",
) -> str:
    """HTML table with numbers aligned right; of class `many` with `MANY` or more columns.

    Args:
      rows: texts of the cells.
      head: text of each column's header, and True for a column of numbers.
      raw: column that holds HTML and is not escaped.
      title: text above the table.
    """
    many = len(head) >= MANY
    top = "".join(f"<th{' class=n' * n}>{escape(t)}</th>" for t, n in head)
    named = [f' data-h="{escape(t)}"' if many and t else "" for t, _ in head]
    marks = [" class=n" * n + name for name, (_, n) in zip(named, head, strict=True)]
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{mark}>{x if i == raw else escape(x)}</td>"
            for i, (x, mark) in enumerate(zip(row, marks, strict=True))
        )
        + "</tr>"
        for row in rows
    )
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    head_row = f"{caption}<thead><tr>{top}</tr></thead>"
    return f"<table{' class=many' * many}>{head_row}<tbody>{body}</tbody></table>"


def table_html(table: Table, *, titled: bool = False) -> str:
    """HTML of a rich table with its caption; "" for a table without rows.

    Args:
      table: the table.
      titled: adds the table's title.
    """
    if not table.row_count:
        return ""
    head = [(plain(c.header), c.justify == "right") for c in table.columns]
    columns = [[plain(x) for x in c.cells] for c in table.columns]
    caption = f"<p class=note>{escape(plain(table.caption))}</p>" if table.caption else ""
    title = plain(table.title) if titled and table.title else ""
    return rows_html(list(zip(*columns, strict=True)), head, title=title) + caption


def renderable_html(renderable: object) -> str:
    """HTML of a rich table, a text, or a group of both."""
    from rich.console import Group
    from rich.table import Table

    if isinstance(renderable, Group):
        return "".join(map(renderable_html, renderable.renderables))
    if isinstance(renderable, Table):
        table = table_html(renderable, titled=True)
        return f"<div class=scroll>{table}</div>" if table else ""
    text = plain(renderable).strip()
    return f"<p>{escape(text)}</p>" if text else ""


def notebook_html(body: str) -> str:
    """HTML of a notebook's output cell, with the style of its tables."""
    return f"<div class=partir><style>{STYLE}</style>{body}</div>"


def plain(x: object) -> str:
    """Text of a cell or a header, without markup."""
    from rich.text import Text

    return Text.from_markup(x).plain if isinstance(x, str) else str(x)
