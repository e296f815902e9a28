"""Wall time of planning by phase, and pass records."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from partir_search.plan.pass_record import PassRecord


class Clock:
    """Wall time by phase.

    Attributes:
      seconds: total seconds of each phase.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._recent: dict[str, float] = {}  # since the records were last taken
        self._passes: list[PassRecord] = []

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Adds the wall time of the block to a phase."""
        begin = time.perf_counter()
        yield
        spent = time.perf_counter() - begin
        for seconds in (self.seconds, self._recent):
            seconds[phase] = seconds.get(phase, 0.0) + spent

    def record(
        self, name: str, before: int, after: int, text: Callable[[], str], *phases: str
    ) -> None:
        """Adds a pass record.

        Args:
          name: name of the pass, and of its main phase.
          before, after: number of ops before and after the pass.
          text: function that prints the program after the pass.
          phases: further phases of the pass.
        """
        seconds = sum(self._recent.get(phase, 0.0) for phase in (name, *phases))
        self._passes.append(PassRecord(name, seconds, before, after, text))

    def taken(self) -> tuple[PassRecord, ...]:
        """Returns and clears the pass records."""
        passes, self._passes, self._recent = tuple(self._passes), [], {}
        return passes
