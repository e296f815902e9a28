"""Runs of ticks of a pipeline: all ticks once, entries, heads and exits in few of them."""

from __future__ import annotations

import itertools

import pytest

from partir_search.ir.pipeline_runs import LEAST_TICKS, MOST_RUNS, runs, ticks_with_ends
from partir_search.ir.pipeline_schedule import PipelineSchedule
from partir_search.ir.pipeline_table import pipeline_table


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("numbers", [(2, 4, 4), (4, 8, 2), (4, 4, 4), (16, 32, 8), (3, 18, 4)])
def test_runs_cover_the_phases(numbers: tuple[int, int, int], schedule: str) -> None:
    s = PipelineSchedule(*numbers, schedule=schedule)
    table = pipeline_table(s)
    ends = {"F": {*table.entries()}, "B": {*table.heads(), *table.exits()}}
    found = runs(s)
    for phase in s.phases():
        mine = [r for r in found if r.kinds == phase.kinds]
        assert len(mine) <= MOST_RUNS
        assert [mine[0].start, mine[-1].stop] == [phase.start, phase.stop]
        assert all(a.stop == b.start for a, b in itertools.pairwise(mine))
    computed = 0
    for run in found:
        if any(t in ends[k] for k in run.kinds for t in range(run.start, run.stop)):
            computed += run.ticks
        else:
            assert run.ticks >= LEAST_TICKS
    assert computed == ticks_with_ends(s)


def test_ticks_with_ends_of_llama() -> None:
    """The first p ticks of F, the last p of B, and -2 to p - 1 of every v p ticks of both."""
    s = PipelineSchedule(16, 32, 8)
    assert [(r.kinds, r.ticks) for r in runs(s)] == [
        ("F", 16), ("F", 111), ("FB", 17), ("FB", 110), ("FB", 17), ("B", 111), ("B", 16),
    ]  # fmt: skip
    assert ticks_with_ends(s) == 66
    assert ticks_with_ends(PipelineSchedule(16, 32)) == 15 + 32 + 15
