"""Docstrings begin with a noun or a verb, and vague words become fewer, never more."""

from __future__ import annotations

import ast
import pathlib
import re

PACKAGE = pathlib.Path(__file__).parent.parent / "partir_search"
HEADLESS = re.compile(r"(What|Whether|Which|How|Where|When|Who)\b")
VAGUE = {
    *("what", "it", "that", "so", "them", "those", "these", "which", "else", "others", "other"),
    *("such", "there", "where", "its", "they"),
}
MOST_VAGUE = 20.0  # per 1,000 words; lowered with every change that lowers the count


def docstrings() -> dict[str, str]:
    """Every docstring, by file and line."""
    found: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                found[f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 1)}"] = text
    return found


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    assert not [place for place, text in docstrings().items() if HEADLESS.match(text)]


def test_vague_words() -> None:
    text = " ".join(re.sub(r"`[^`]*`", " CODE ", d) for d in docstrings().values())
    words = [w.lower() for w in re.findall(r"[A-Za-z']+", text)]
    assert 1000 * sum(w in VAGUE for w in words) / len(words) <= MOST_VAGUE
