"""Several compilations at a time, each with a limit of seconds and of peak memory."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from partir_search.aot.process import CompiledProgram, NotCompiled
from partir_search.messages.wording import amount

SECONDS_BETWEEN_LOOKS = 0.1


class Running(Protocol):
    """A compilation under way (`aot.process.Compilation`)."""

    @property
    def seconds(self) -> float: ...

    @property
    def ready(self) -> bool: ...

    def peak_bytes(self) -> int | None: ...

    def result(self) -> CompiledProgram: ...

    def close(self) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one compilation.

    Attributes:
      peak_bytes: of the buffer assignment; None if there is none.
      program: the compiled program; None if it was not compiled to the end.
      note: reason for missing results; "" without one.
    """

    peak_bytes: int | None = None
    program: CompiledProgram | None = None
    note: str = ""


def compile_all(
    starts: Sequence[Callable[[], Running]],
    *,
    seconds: float,
    limit: float,
    processes: int | None,
    enough: Callable[[Outcome], bool],
) -> Iterator[tuple[int, Outcome]]:
    """Outcomes of compilations by position, as they end.

    Args:
      starts: functions that start a compilation each; called in order, as processes become free.
      seconds: wall seconds of one compilation.
      limit: bytes; a compilation with a higher peak ends at the buffer assignment.
      processes: compilations at a time; None for the number of usable CPUs.
      enough: function from an outcome; True ends the compilations of all later positions.
    """
    waiting, running = list(enumerate(starts)), dict[int, Running]()
    most, last = processes or _cpus(), len(starts)
    try:
        while waiting or running:
            ended: list[tuple[int, Outcome]] = []
            while waiting and len(running) < most:
                at, start = waiting.pop(0)
                try:
                    running[at] = start()
                except NotCompiled as error:
                    ended.append((at, Outcome(note=str(error))))
            for at, each in list(running.items()):
                outcome = _outcome(each, seconds, limit)
                if outcome is not None:
                    running.pop(at).close()
                    ended.append((at, outcome))
            for at, outcome in ended:
                if at > last:
                    continue
                yield at, outcome
                last = at if enough(outcome) else last
            waiting = [(at, start) for at, start in waiting if at <= last]
            for at in [at for at in running if at > last]:
                running.pop(at).close()
            if not ended:
                time.sleep(SECONDS_BETWEEN_LOOKS)
    finally:
        for each in running.values():
            each.close()


def _cpus() -> int:
    """Number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _outcome(running: Running, seconds: float, limit: float) -> Outcome | None:
    """Outcome of a compilation that is ready, or beyond a limit; None for one under way."""
    if running.ready:
        try:
            program = running.result()
        except NotCompiled as error:
            return Outcome(running.peak_bytes(), note=str(error))
        return Outcome(program.peak_bytes, program)
    peak = running.peak_bytes() if math.isfinite(limit) else None
    if peak is not None and peak > limit:
        return Outcome(peak, note=f"over the limit of {amount(limit, 4)}; code was not generated")
    if running.seconds > seconds:
        return Outcome(peak, note=f"ended after {seconds:.0f} s without a result")
    return None
