"""Ticks of a pipeline with several stacks of layers: runs, segments, and the numbers of each tick.

Run j is F of stack j for the first stacks, then B of each stack in reverse. Segment j of the ops
outside of the layers lies before run j, in the ticks in which a microbatch enters the run; the last
segment follows all runs. If gradients of weights are split off, W of a stack is a run of its own.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from partir_search.ir.pipeline_runs import cut_at_ends
from partir_search.ir.pipeline_schedule import (
    BACKWARD,
    FORWARD,
    GPIPE,
    WEIGHTS,
    Phase,
    PipelineSchedule,
)
from partir_search.ir.pipeline_table import PipelineTable, pipeline_table
from partir_search.passes.pipeline.tick_rows import tick_rows


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Loop:
    """A loop over ticks with equal kinds of work.

    Attributes:
      ticks: the ticks.
      runs: numbers of the runs with an item in each tick.
      weights: numbers of the stacks with an item of W in each tick.
      segments: numbers of the segments with a microbatch in some tick.
      rows: by name, numbers of each tick: `segment<j>` and `valid<j>`; `microbatch<r>`, `slot<r>`,
        `chunk<r>`, `last<r>`, `live<r>`, `writes<r>` and `waiting<r>` of a run; of W
        of stack k, r is `_w<k>`.
      passing: backward runs of which the first stage goes on with arriving cotangents.
    """

    ticks: range
    runs: tuple[int, ...]
    weights: tuple[int, ...]
    segments: tuple[int, ...]
    rows: Mapping[str, Any]
    passing: frozenset[int]


class ChainTicks:
    """Ticks of a pipeline with several stacks.

    Attributes:
      tables: of each stack.
    """

    def __init__(self, schedule: PipelineSchedule, stacks: int) -> None:
        self._schedule, self._stacks = schedule, stacks
        self.tables: list[PipelineTable] = [
            pipeline_table(s) for s in stack_schedules(schedule, stacks)
        ]

    @property
    def waits(self) -> bool:
        """True if results of the last forward run wait for the head: B begins after all F."""
        return self._schedule.schedule == GPIPE

    def kind(self, run: int) -> str:
        """Kind of work of a run."""
        return FORWARD if run < self._stacks else BACKWARD

    def loops(self) -> Iterator[Loop]:
        """All loops over ticks, in order."""
        for start, stop in self._phases():
            yield self._loop(start, stop)

    def segment_ticks(self, segment: int) -> dict[int, int]:
        """Microbatch of a segment by tick."""
        s = self._schedule
        last = 2 * self._stacks
        first = self._first(segment) if segment < last else self._first(last - 1) + s.through
        groups = [divmod(n, s.stages) for n in range(s.microbatches)]
        of_group = s.stages * s.chunks
        return {first + group * of_group + i: n for n, (group, i) in enumerate(groups)}

    def _first(self, run: int) -> int:
        """First tick of a run on any device."""
        if run < self._stacks:
            return self.tables[run].schedule.delay(FORWARD, 0)
        schedule = self.tables[2 * self._stacks - 1 - run].schedule
        return schedule.delay(BACKWARD, schedule.stages - 1)

    def _span(self, run: int) -> range:
        first = self._first(run)
        return range(first, first + self._schedule.items + self._schedule.stages - 1)

    def _weights_span(self, stack: int) -> range:
        first = self.tables[stack].schedule.delay(WEIGHTS, 0)
        return range(first, first + (self._schedule.items if self._schedule.split else 0))

    def _phases(self) -> Iterator[tuple[int, int]]:
        """Runs of ticks with equal kinds of work; with chunks, with a segment and with none."""
        spans = [self._span(run) for run in range(2 * self._stacks)]
        spans += [s for s in map(self._weights_span, range(self._stacks)) if s]
        cuts = sorted({s.start for s in spans} | {s.stop for s in spans})
        ends = {t for j in range(1 + 2 * self._stacks) for t in self.segment_ticks(j)}
        for start, stop in itertools.pairwise(cuts):
            if self._schedule.chunks == 1:
                yield start, stop
                continue
            for run in cut_at_ends(Phase("", start, stop), ends.__contains__):
                yield run.start, run.stop

    def _loop(self, start: int, stop: int) -> Loop:
        ticks = range(start, stop)
        runs = [r for r in range(2 * self._stacks) if start in self._span(r)]
        weights = [k for k in range(self._stacks) if start in self._weights_span(k)]
        places = [self.segment_ticks(j) for j in range(1 + 2 * self._stacks)]
        segments = [j for j, at in enumerate(places) if not at.keys().isdisjoint(ticks)]
        rows: dict[str, Any] = {}
        for j in segments:
            numbers = np.array([places[j].get(t, -1) for t in ticks], np.int32)
            rows[f"segment{j}"] = np.maximum(numbers, 0)
            if (numbers < 0).any():
                rows[f"valid{j}"] = numbers >= 0
        passing = set[int]()
        items = [(r, f"{r}", min(r, 2 * self._stacks - 1 - r), self.kind(r)) for r in runs]
        items += [(-1, f"_w{k}", k, WEIGHTS) for k in weights]
        for run, name, stack, kind in items:
            found = tick_rows(self.tables[stack], Phase(kind, start, stop))
            names = ["microbatch", "slot", *(["chunk"] if self._schedule.chunks > 1 else [])]
            names += ["waiting"] if f"waiting_{kind}" in found.arrays else []
            rows |= {f"{field}{name}": found.arrays[f"{field}_{kind}"] for field in names}
            if "last_valid" in found.flags:
                rows[f"last{name}"] = found.flags["last_valid"]
            if found.passes:
                passing.add(run)
            if f"writes_{kind}" in found.flags:
                rows[f"writes{name}"] = found.flags[f"writes_{kind}"]
            if f"live_{kind}" in found.flags:
                rows[f"live{name}"] = found.flags[f"live_{kind}"]
        return Loop(ticks, tuple(runs), tuple(weights), tuple(segments), rows, frozenset(passing))


def stack_schedules(schedule: PipelineSchedule, stacks: int) -> list[PipelineSchedule]:
    """Schedules of the stacks of a pipeline."""
    return [dataclasses.replace(schedule, stacks=stacks, place=k) for k in range(stacks)]
