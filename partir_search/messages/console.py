"""Constructors of rich tables, trees and consoles; rich is slow and imported on first use."""

from __future__ import annotations

import functools
import shutil
import sys
from typing import TYPE_CHECKING, Any

from partir_search.messages.html import notebook_html, renderable_html

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.table import Table


def new_table(*headers: str, **options: Any) -> Table:
    """An empty `rich.table.Table` without vertical lines, which take room from narrow terminals."""
    from rich import box

    return _table_class()(*headers, **{**_STYLE, "box": box.SIMPLE_HEAD, **options})


@functools.cache
def _table_class() -> type[Table]:
    from rich.table import Table

    class NotebookTable(Table):
        """Table of rich, with an HTML form for notebooks."""

        def _repr_html_(self) -> str:
            return notebook_html(renderable_html(self))

        def _repr_mimebundle_(self, *args: Any, **kwargs: Any) -> dict[str, str]:
            return {"text/plain": text_of(self), "text/html": self._repr_html_()}

    return NotebookTable


_STYLE: dict[str, Any] = {"show_edge": False, "pad_edge": False, "padding": (0, 1, 0, 0)}


def new_console(**options: Any) -> Console:
    """A `rich.console.Console`."""
    from rich.console import Console

    return Console(**options)


WIDTH = 140  # characters of text that no terminal shows


def text_of(renderable: RenderableType) -> str:
    """Text of a renderable without colors, as wide as the terminal of stdout but at most WIDTH.

    Nothing is shown, in notebooks neither.
    """
    width = min(WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else WIDTH
    console = new_console(width=width, force_terminal=False, force_jupyter=False, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get().rstrip()


def grouped(*renderables: RenderableType) -> Group:
    """Renderables stacked vertically."""
    from rich.console import Group

    return Group(*renderables)
