"""Latency hiding: collectives that run beside dots off the critical path.

With `XlaTraits.defers_weight_gradients` XLA's latency-hiding scheduler defers the dots of weight
gradients and runs each beside a collective of the backward pass, or of a weight gradient made
before. The hidden seconds of collectives are at most the seconds of the deferred dots, on links of
any speed. The rest of the backward pass hides none.
"""

from __future__ import annotations

import collections
import dataclasses

from partir_search.ir.core import Op


@dataclasses.dataclass(slots=True)
class InFlightCollective:
    """Asynchronous collective.

    Attributes:
      kind / axes: kind of the collective, names of its mesh axes.
      seconds: duration in all runs.
      exposed: seconds not hidden by a dot yet.
      op: op for which the collective is done; None for the program's results.
      at: key of the record (`Overlap.records`).
    """

    kind: str
    axes: str
    seconds: float
    exposed: float
    op: Op | None
    at: int


class OverlapWindow:
    """Overlap of one region's collectives with its deferred dots, the dots off the critical path.

    Attributes:
      idle: seconds of deferred dots that hide no collective yet.
      queue: deferred collectives, to be hidden by later dots.
      begun: all collectives of the region.
    """

    def __init__(self) -> None:
        self.idle = 0.0
        self.queue: collections.deque[InFlightCollective] = collections.deque()
        self.begun: list[InFlightCollective] = []
        self._layers: list[tuple[InFlightCollective, float]] = []

    def work(self, seconds: float) -> None:
        """Runs deferred dots, to hide collectives of the queue; the rest of the seconds is idle.

        The collective of a dot's own result, which the dot cannot hide, begins later and may use
        the dot's idle seconds. Over a step the error is at most one dot.
        """
        while self.queue and seconds > 0.0:
            first = self.queue[0]
            share = min(first.exposed, seconds)
            first.exposed -= share
            seconds -= share
            if first.exposed <= 0.0:
                self.queue.popleft()
        self.idle += seconds

    def begin(self, started: InFlightCollective, *, deferrable: bool, layers: int = 1) -> None:
        """Begins a collective and hides it behind idle seconds of earlier dots.

        Args:
          deferrable: True if no dot depends on the result: later dots may hide the rest.
          layers: number of the original's collectives behind a quotient's. Dots of a layer hide
            the collective of the next layer: later dots may hide all but one layer's.
        """
        self.begun.append(started)
        share = min(self.idle, started.exposed)
        self.idle -= share
        started.exposed -= share
        if started.exposed and deferrable:
            self.queue.append(started)
        elif started.exposed and layers > 1:
            self._layers.append((started, started.exposed * (layers - 1) / layers))

    def end(self) -> None:
        """Ends the window after the last deferred dot: idle seconds hide collectives of layers."""
        for started, most in self._layers:
            share = min(self.idle, most)
            self.idle -= share
            started.exposed -= share
        self.idle, self._layers = 0.0, []
