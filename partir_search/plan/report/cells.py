"""Table cells for narrow columns, and lists of many entries in few words."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from partir_search.passes.pad_choice import Pad

ELLIPSIS = "\u2026"
MIN_PATH = 24  # characters of an argument's path in the narrowest column
MAX_PADS = 4  # padded dims named in a report; programs with cumulative ops have dozens
_SOURCE = re.compile(r"(?P<file>.*:\d+)(?P<function> \(.*\))?")


def shortened(text: str, width: int) -> str:
    """Text of at most `width` characters, with the middle left out; most are of the end."""
    if len(text) <= width:
        return text
    kept = max(width - len(ELLIPSIS), 2)
    head = kept // 6
    return f"{text[:head]}{ELLIPSIS}{text[len(text) - (kept - head) :]}"[: max(width, 1)]


def local_source(source: str) -> str:
    """``file:line (function)`` relative to the working folder, or with the last three folders."""
    name, _, rest = source.partition(":")
    inside = name.removeprefix(os.getcwd() + os.sep)
    parts = inside.split(os.sep)
    if inside == name and len(parts) > 4:
        inside = os.sep.join((ELLIPSIS, *parts[-3:]))
    return f"{inside}:{rest}" if rest else source


def padding_in_words(padding: Sequence[Pad]) -> str:
    """Text of the first `MAX_PADS` padded dims and of the number of further dims."""
    named = ", ".join(f"dim {p.dim} of {p.value} to {p.size}" for p in padding[:MAX_PADS])
    further = len(padding) - MAX_PADS
    return f"{named} and {further} more" if further > 0 else named


class Path:
    """Cell with an argument's path, shortened in the middle to the column's width."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    @property
    def min_width(self) -> int:
        """Characters in the narrowest column."""
        return min(len(self.text), MIN_PATH)

    def fitted(self, width: int) -> str:
        """The text in a column of `width` characters."""
        return shortened(self.text, width)

    def __rich_measure__(self, console: Any, options: Any) -> Any:
        from rich.measure import Measurement

        return Measurement(self.min_width, len(self.text))

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.text import Text

        yield Text(self.fitted(options.max_width), no_wrap=True, overflow="crop")


class Source(Path):
    """Cell with a source line; a narrow column keeps file name and line number."""

    def __init__(self, source: str) -> None:
        super().__init__(local_source(source))

    def _forms(self) -> tuple[str, ...]:
        """The text with less and less: without function, without folders."""
        found = _SOURCE.fullmatch(self.text)
        if found is None:
            return (self.text,)
        file = found["file"]
        name = file.rpartition(os.sep)[2]
        return self.text, file, f"{ELLIPSIS}{os.sep}{name}", name

    @property
    def min_width(self) -> int:
        return min(map(len, self._forms()))

    def fitted(self, width: int) -> str:
        forms = self._forms()
        return next((form for form in forms if len(form) <= width), shortened(forms[-1], width))
