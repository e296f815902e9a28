"""Errors of predicted peaks of held-out programs, and collectives that were not predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.table import Table

LEAST_PEAK_BYTES = 200e6


def errors_of(rows: Sequence[dict[str, Any]]) -> Any:
    """[rows] predicted over compiled peaks, minus 1, of the programs above 200 MB."""
    large = [r for r in rows if r["compiled_peak"] > LEAST_PEAK_BYTES]
    return np.array([r["predicted_peak"] / r["compiled_peak"] - 1 for r in large])


def summary(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="programs that no rule was found on", title_justify="left")
    head = ("target", "program", "plans", "confirmed", "peak GB", "median |error|", "worst")
    for column in (*head, "within 10 %"):
        table.add_column(column, justify="right")

    def add(target: str, program: str, held: Sequence[dict[str, Any]]) -> None:
        error, peaks = errors_of(held), [r["compiled_peak"] / 1e9 for r in held]
        told = ("-", "-", "-")
        if len(error):
            worst = f"{error[np.argmax(abs(error))]:+.1%}"
            told = f"{np.median(abs(error)):.1%}", worst, f"{np.mean(abs(error) <= 0.1):.0%}"
        confirmed = str(sum(r["confirmed"] for r in held))
        peak = f"{min(peaks):.2f}..{max(peaks):.2f}"
        table.add_row(target, program, str(len(held)), confirmed, peak, *told)

    for target in dict.fromkeys(r["target"] for r in rows):
        of_target = [r for r in rows if r["target"] == target]
        for program in dict.fromkeys(r["model"] for r in of_target):
            add(target, program, [r for r in of_target if r["model"] == program])
        add(target, "all", of_target)
    return table


def faults(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines about plans beyond 20 % or with collectives that were not predicted."""
    found = []
    for r in rows:
        error = r["predicted_peak"] / r["compiled_peak"] - 1
        if r["compiled_peak"] > LEAST_PEAK_BYTES and abs(error) > 0.2:
            found.append(
                f"{r['model']}, {r['plan']}: {r['compiled_peak'] / 1e9:.2f} GB {error:+.1%}"
            )
        found += [f"{r['model']}, {r['plan']}: {line}" for line in r["unexplained"]]
    return found
