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
        self._recent: dict[str, float] = {}  # since the records were last taken
        self._passes: list[PassRecord] = []

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Adds the time of the block to a phase."""
        begin = time.perf_counter()
        yield
        spent = time.perf_counter() - begin
        for seconds in (self.seconds, self._recent):
            seconds[phase] = seconds.get(phase, 0.0) + spent

    def record(
        self, name: str, before: int, after: int, text: Callable[[], str], *phases: str
    ) -> None:
        """Records a pass.

        Args:
          phases: phases of the pass besides the one of its name, if they ran.
        """
        seconds = sum(self._recent.get(phase, 0.0) for phase in (name, *phases))
        self._passes.append(PassRecord(name, seconds, before, after, text))

    def taken(self) -> tuple[PassRecord, ...]:
        """The records since they were last taken."""
        passes, self._passes, self._recent = tuple(self._passes), [], {}
        return passes
