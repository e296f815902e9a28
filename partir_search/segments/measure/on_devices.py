"""Seconds of segments on the devices of a mesh at hand."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from jax.sharding import Mesh

from partir_search.segments.measure.clock import CLOCKS, ClockName, filled, null_program, timings
from partir_search.segments.measure.measured import Done, Measured
from partir_search.segments.run import Runnable, runnable
from partir_search.segments.segment import Segment

RUNS = 10


def on_devices(
    segments: Sequence[Segment],
    mesh: Mesh,
    *,
    runs: int = RUNS,
    clock: ClockName = "wall",
    in_turns: bool = False,
    done: Done = lambda text: None,
) -> dict[str, Measured]:
    """Measures segments by key.

    The least seconds of a program with the same arguments and nothing to compute are subtracted
    from the least seconds of the segment.

    Args:
      segments: of `plan.segments(mesh)`, one of each key.
      mesh: with the plan's shape.
      runs: samples of each segment.
      clock: "wall", or "cpu" for CPU seconds of the process over the number of devices, on virtual
        devices of a busy machine.
      in_turns: time all segments in turns, with all arguments in memory, so that changes of the
        machine's load meet all alike.
      done: called after each segment.
    """
    share = mesh.size if clock == "cpu" else 1
    found: dict[str, Measured] = {}
    waiting: list[tuple[Segment, Ready]] = []

    def time_waiting() -> None:
        results = measured([ready for _, ready in waiting], runs, clock)
        for (segment, ready), (seconds, spread) in zip(waiting, results, strict=True):
            found[segment.key] = Measured(seconds / share, math.nan, spread, runs, ready.temp_bytes)
        waiting.clear()

    for segment in segments:
        waiting.append((segment, Ready(runnable(segment, mesh))))
        if not in_turns:
            time_waiting()
        done(segment.name)
    time_waiting()
    return found


class Ready:
    """A compiled runnable with arrays, and a program with nothing to compute beside it."""

    def __init__(self, part: Runnable) -> None:
        compiled = part.jitted.lower(*part.structs).compile()
        null = null_program(part).lower(*part.structs).compile()
        arguments = filled(part.structs)
        self.temp_bytes = int(compiled.memory_analysis().temp_size_in_bytes)
        self.programs: tuple[Callable[[], Any], Callable[[], Any]] = (
            functools.partial(compiled, *arguments),
            functools.partial(null, *arguments),
        )


def measured(parts: Sequence[Ready], runs: int, clock: ClockName) -> list[tuple[float, float]]:
    """(seconds without the call's own, spread) of each part, in turns."""
    times = timings([program for part in parts for program in part.programs], runs, CLOCKS[clock])
    return [
        (max(0.0, own.least - null.least), own.spread)
        for own, null in zip(times[::2], times[1::2], strict=True)
    ]
