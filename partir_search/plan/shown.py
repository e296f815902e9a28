"""Results with a rich rendering."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partir_search.messages.console import new_console

if TYPE_CHECKING:
    from rich.console import RenderableType


class Shown:
    """Base of results with a rich rendering, for terminals and as the text of `str`."""

    def __rich__(self) -> RenderableType:
        raise NotImplementedError

    def __str__(self) -> str:
        console = new_console(width=140, force_terminal=False, color_system=None)
        with console.capture() as capture:
            console.print(self)
        return capture.get().rstrip()
