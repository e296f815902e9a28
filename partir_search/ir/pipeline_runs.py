"""Runs of ticks of a pipeline: phases cut where ticks with an entry, head or exit begin or end.

With chunks, a microbatch enters, reaches the head and leaves in some ticks only: ticks -2 to p - 1
of every v p. Loops over the ticks between them compute no entry, head or exit.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator

from partir_search.ir.pipeline_schedule import BACKWARD, FORWARD, Phase, PipelineSchedule

LEAST_TICKS = 4  # of a loop of its own without entry, head or exit
MOST_RUNS = 7  # of one phase; a program grows with each


def runs(schedule: PipelineSchedule) -> tuple[Phase, ...]:
    """Phases of a schedule, cut into ticks with an entry, head or exit and ticks without one.

    After `MOST_RUNS` loops of a phase its last loop takes all ticks that are left.
    """
    if schedule.chunks == 1:
        return schedule.phases()
    return tuple(
        run
        for phase in schedule.phases()
        for run in cut_at_ends(phase, functools.partial(_has_end, schedule, phase.kinds))
    )


def ticks_with_ends(schedule: PipelineSchedule) -> int:
    """Ticks of all runs that compute an entry, a head or an exit."""
    return sum(run.ticks for run in runs(schedule) if _ends_in(schedule, run))


def cut_at_ends(phase: Phase, has_end: Callable[[int], bool]) -> list[Phase]:
    """Runs of ticks of a phase, with an end in some tick or in none.

    Args:
      has_end: True for a tick in which a microbatch enters, reaches the head or leaves.
    """
    found: list[tuple[bool, Phase]] = []
    for ends, ticks in _alike(phase, has_end):
        ends |= len(ticks) < LEAST_TICKS
        start = ticks[0]
        if found and found[-1][0] == ends:
            start = found.pop()[1].start
        found.append((ends, Phase(phase.kinds, start, ticks[-1] + 1)))
    cut = [run for _, run in found]
    if len(cut) <= MOST_RUNS:
        return cut
    rest = Phase(phase.kinds, cut[MOST_RUNS - 1].start, phase.stop)
    return [*cut[: MOST_RUNS - 1], rest]


def _alike(phase: Phase, has_end: Callable[[int], bool]) -> Iterator[tuple[bool, list[int]]]:
    """Ticks of a phase with an end, and without one, in turn."""
    for ends, ticks in itertools.groupby(range(phase.start, phase.stop), has_end):
        yield ends, list(ticks)


def _ends_in(schedule: PipelineSchedule, run: Phase) -> bool:
    return any(_has_end(schedule, run.kinds, t) for t in range(run.start, run.stop))


def _has_end(schedule: PipelineSchedule, kinds: str, tick: int) -> bool:
    """True if a microbatch enters, reaches the head or leaves in a tick."""
    places = (
        (FORWARD, 0, 0),
        (BACKWARD, schedule.stages - 1, schedule.chunks - 1),
        (BACKWARD, 0, 0),
    )
    for kind, device, chunk in places:
        item = schedule.item(kind, device, tick) if kind in kinds else None
        if item is not None and item.chunk == chunk:
            return True
    return False
