"""Lines of the printed IR broken to the width of a page."""

from __future__ import annotations

from partir_search.ir.printing.text import WIDTH, fitted


def test_long_lines_break_at_commas_and_types() -> None:
    words = ", ".join(f"%value_{i}" for i in range(20))
    lines = fitted(f"    %x = concatenate[dimension=0] {words} : f32[8]{{batch:0, model:1}}")
    assert max(map(len, lines)) <= WIDTH
    assert all(line.startswith("        %") for line in lines[1:])
    assert all(line.endswith(",") for line in lines[:-1])
    assert fitted("short") == ["short"]


def test_long_words_stay_whole() -> None:
    """A word that no indent leaves room for goes to the margin; a longer one breaks at a comma."""
    name = "%" + "layer_10." * 9
    lines = fitted(f"{' ' * 60}%x = add {name}, {name} : f32[8]")
    assert max(map(len, lines)) <= WIDTH
    assert all(lines)
    assert sum(name in line for line in lines) == 2
    numbers = ",".join(map(str, range(100)))
    lines = fitted(f"  %x = gather[sizes=({numbers})] %y : f32[8]")
    assert max(map(len, lines)) <= WIDTH
    assert all(line.endswith(",") for line in lines[1:-1])
