"""Hooks of the documentation site: Markdown of pages in the form that its parser reads."""

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Opening fences with the language alone.

    tests/test_docs.py reads words after the language (`python raises`, `text prints`); the site's
    parser takes a fence with such words for prose, and the headings after the fence for code.
    """
    return re.sub(r"^```(\w+) .*$", r"```\1", markdown, flags=re.MULTILINE)
