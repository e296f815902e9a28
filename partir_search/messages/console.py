"""Constructors of rich tables, trees and consoles; rich is slow and imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.table import Table


def new_table(*headers: str, **options: Any) -> Table:
    """An empty `rich.table.Table` without vertical lines, which take room from narrow terminals."""
    from rich import box
    from rich.table import Table

    return Table(*headers, **{**_STYLE, "box": box.SIMPLE_HEAD, **options})


_STYLE: dict[str, Any] = {"show_edge": False, "pad_edge": False, "padding": (0, 1, 0, 0)}


def new_console(**options: Any) -> Console:
    """A `rich.console.Console`."""
    from rich.console import Console

    return Console(**options)


def grouped(*renderables: RenderableType) -> Group:
    """Renderables stacked vertically."""
    from rich.console import Group

    return Group(*renderables)
