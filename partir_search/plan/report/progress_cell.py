"""Progress of a search in the output of a notebook's cell."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from html import escape
from typing import Any

SECONDS = 0.5  # between updates


def in_notebook() -> bool:
    """True under an IPython kernel (Jupyter, Colab), whose output cells show HTML."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


def progress_cell(episodes: int, what: str = "search") -> Callable[[int, str, bool], None]:
    """Bar in the output of the running cell.

    Returns:
      Function that shows a number of episodes and a text, at most twice a second unless forced.
    """
    from IPython.display import HTML, display

    begin = time.monotonic()
    last = -SECONDS
    handle: Any = display(HTML(_bar(what, 0, episodes, 0.0, "")), display_id=True)

    def show(done: int, text: str, force: bool) -> None:
        nonlocal last
        elapsed = time.monotonic() - begin
        if force or elapsed - last >= SECONDS:
            last = elapsed
            handle.update(HTML(_bar(what, min(done, episodes), episodes, elapsed, text)))

    return show


def _bar(what: str, done: int, episodes: int, seconds: float, text: str) -> str:
    return (
        f"<div>{escape(what)} <progress value={done} max={max(episodes, 1)}></progress>"
        f" {done}/{episodes}, {seconds:.0f} s {escape(text)}</div>"
    )
