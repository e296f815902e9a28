"""Results with a rich rendering."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partir_search.messages.console import text_of
from partir_search.messages.html import notebook_html, renderable_html

if TYPE_CHECKING:
    from rich.console import RenderableType


class Shown:
    """Base of results with a rich rendering: in terminals, as text, and as HTML in notebooks."""

    def __rich__(self) -> RenderableType:
        raise NotImplementedError

    def __str__(self) -> str:
        return text_of(self)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return notebook_html(renderable_html(self.__rich__()))
