"""Sentences and pictures of the demo."""

from __future__ import annotations

import io

from rich.console import Console

from experiments.demo_output import NEXT, picture, show_losses, show_speed, why_compiled_differs


def test_pictures_of_numbers() -> None:
    assert picture([0.0, 7.0, 3.5, 1.0]) == "▁█▅▂"
    assert picture([2.0, 2.0]) == "▁▁"


def test_why_compiled_differs() -> None:
    counts = {"all_gather": 4, "all_reduce": 1}
    assert why_compiled_differs(counts, counts) == "Every collective is compiled as predicted."
    text = why_compiled_differs(counts, {"all_gather": 2, "all_reduce": 3})
    assert "2 all_gather fewer, 2 all_reduce more" in text


def test_losses_and_seconds() -> None:
    console = Console(width=100, file=io.StringIO(), record=True)
    assert show_losses(console, {0: 2.0, 1: 1.0}, [2.0, 1.1]) > 0.09
    assert show_losses(console, {0: float("nan")}, [2.0]) == float("inf")
    show_speed(console, [0.1, 0.3, 0.2], [0.5])
    text = console.export_text()
    assert "losses, partitioned  █▁  2.000 to 1.000" in text
    assert "emitted step: 200.0 ms; jax.jit with the same shardings: 500.0 ms" in text
    assert max(map(len, NEXT.splitlines())) <= 100
