"""Seconds of planning by phase, and records of its passes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from partir_search.plan.pass_record import PassRecord


class Clock:
    """Wall time by phase.

    Attributes:
      seconds: by phase, of all its runs.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._passes: list[PassRecord] = []

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Adds the time of the block to a phase."""
        begin = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - begin

    def record(self, name: str, before: int, after: int, text: Callable[[], str]) -> None:
        """Records a pass whose phase has its name."""
        self._passes.append(PassRecord(name, self.seconds[name], before, after, text))

    def taken(self) -> tuple[PassRecord, ...]:
        """The records since they were last taken."""
        passes, self._passes = tuple(self._passes), []
        return passes
