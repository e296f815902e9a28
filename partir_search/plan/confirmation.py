"""Finalists of a plan by the compiler's figures (`plan.confirmed`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from partir_search.messages.console import new_table
from partir_search.messages.shown import Shown
from partir_search.messages.wording import amount, milliseconds
from partir_search.plan.json_entries import typed_entry

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


@dataclasses.dataclass(frozen=True, slots=True)
class Finalist:
    """A plan with the simulator's and the compiler's figures of a step on one device.

    Attributes:
      name: origin of the decisions: the search's plan, a known strategy, or moves of the search.
      seconds / peak_bytes: simulated.
      judged_seconds: by the compiler's cycles; None if not compiled, or compiled for memory alone.
      compiled_peak_bytes: by the compiler's buffer assignment; None if not compiled.
      fits: True if the compiled peak is within the memory limit; None if not compiled.
      chosen: True for the plan chosen.
      note: reason for missing figures, or a doubt about figures; "" without either.
    """

    name: str
    seconds: float
    peak_bytes: float
    judged_seconds: float | None = None
    compiled_peak_bytes: float | None = None
    fits: bool | None = None
    chosen: bool = False
    note: str = ""


@dataclasses.dataclass(frozen=True, repr=False)
class Confirmation(Shown):
    """Choice among the finalists of a search by a compiler's figures.

    Attributes:
      target: machine and topology of the compiler, ``tpu_v5e:2x4``.
      cycles: True if seconds are judged, False if finalists were compiled for memory alone.
      finalists: the search's plan first, then further plans, best first by the simulator.
      why: reason for the choice, in words.
      compile_seconds: wall seconds of all compilations together.
    """

    target: str
    cycles: bool
    finalists: tuple[Finalist, ...]
    why: str
    compile_seconds: float

    @property
    def chosen(self) -> Finalist:
        """The finalist that is the plan."""
        return next(each for each in self.finalists if each.chosen)

    def to_json(self) -> dict[str, Any]:
        """All fields, as JSON values."""
        return dataclasses.asdict(self) | {
            "finalists": [dataclasses.asdict(each) for each in self.finalists]
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Confirmation:
        """Inverse of `to_json`.

        Raises:
          KeyError, TypeError or ValueError: `data` was not written by `to_json`.
        """
        finalists = typed_entry(data, "finalists", list, "a list of finalists")
        found = tuple(Finalist(**each) for each in finalists)
        if sum(each.chosen for each in found) != 1:
            raise ValueError("its 'finalists' have no chosen one, or several")
        return cls(
            target=typed_entry(data, "target", str, "a machine and its topology"),
            cycles=typed_entry(data, "cycles", bool, "true or false"),
            finalists=found,
            why=typed_entry(data, "why", str, "words"),
            compile_seconds=typed_entry(data, "compile_seconds", float, "seconds"),
        )

    def __rich__(self) -> RenderableType:
        return self.table()

    def table(self) -> Table:
        """Table of the finalists, in their order."""
        table = new_table(
            title=f"finalists by the compiler, {self.target}",
            title_justify="left",
            caption=f"{self.why}; compiled in {self.compile_seconds:.0f} s",
            caption_justify="left",
        )
        table.add_column("")
        columns = ("ms judged", "predicted") if self.cycles else ("ms predicted",)
        for column in (*columns, "peak compiled", "predicted", "fits"):
            table.add_column(column, justify="right")
        table.add_column("plan", overflow="fold")
        if any(each.note for each in self.finalists):
            table.add_column("note", overflow="fold")
        for each in self.finalists:
            judged = "" if each.judged_seconds is None else f"{each.judged_seconds * 1e3:.3f}"
            peak = each.compiled_peak_bytes
            table.add_row(
                "chosen" if each.chosen else "",
                *((judged,) if self.cycles else ()),
                f"{each.seconds * 1e3:.3f}",
                "" if peak is None else amount(peak, 4),
                amount(each.peak_bytes, 4),
                "" if each.fits is None else "yes" if each.fits else "no",
                each.name,
                *((each.note,) if len(table.columns) > 6 + self.cycles else ()),
            )
        return table


def why_chosen(
    finalists: Sequence[Finalist], chosen: int, limit: float, ranked: Collection[int]
) -> str:
    """Sentence on a choice.

    Args:
      finalists: the search's plan first.
      chosen: position of the choice.
      limit: bytes per device allowed by the goals.
      ranked: positions of the finalists with all figures that the choice needs.
    """
    first, best, with_figures = finalists[0], finalists[chosen], len(ranked)
    if not ranked:
        return "no finalist has figures by the compiler: the search's plan stands"
    over = "" if best.fits else f"; none is within {amount(limit, 4)}"
    if not chosen:
        return f"the search's plan is the best of {with_figures} by the compiler's figures{over}"
    if 0 not in ranked:
        reason = f"the search's plan has no figures ({first.note})"
    elif first.compiled_peak_bytes is not None and not first.fits:
        reason = (
            f"the search's plan takes {amount(first.compiled_peak_bytes, 4)} of"
            f" {amount(limit, 4)} by the compiler"
        )
    elif best.judged_seconds and first.judged_seconds:
        share = 1.0 - best.judged_seconds / first.judged_seconds
        pair = f"{milliseconds(best.judged_seconds)}, not {milliseconds(first.judged_seconds)}"
        reason = f"{share:.1%} fewer seconds than the search's plan by the compiler: {pair}"
    else:
        reason = "better than the search's plan by the compiler's figures"
    return f"{best.name} is chosen of {with_figures}: {reason}{over}"
