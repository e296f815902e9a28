"""Collectives behind dots off the critical path.

Under `XlaTraits.defers_weight_gradients` the scheduler defers the dots that make gradients of
parameters and runs them beside collectives: of the gradients made before, or of the backward pass.
So it hides about as many seconds of collectives as these dots take, whatever the links. The rest of
the backward pass could hide more and does not.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence

from partir_search.ir.core import Module, Op, Region, Value, walk_regions
from partir_search.ir.rule import OpRule
from partir_search.rules.control_flow import flows_of


def off_critical_path(module: Module, rules: Sequence[OpRule]) -> frozenset[int]:
    """Ids of values that no dot needs, directly or not, in the region that makes them."""
    made = frozenset(r.id for op in module.ops for r in op.results)
    awaited: set[int] = set()
    _visit(module.body, (), rules, awaited)
    return made - awaited


def _visit(
    region: Region, results: Iterable[int], rules: Sequence[OpRule], awaited: set[int]
) -> None:
    awaited.update(results)
    for op in reversed(region.ops):
        if _works(op, rules) or any(r.id in awaited for r in op.results):
            awaited.update(v.id for _, v in op.inputs())
        if not op.regions:
            continue
        flows = flows_of(op)
        leaving = [(r, i) for r, i, out, _ in flows.leaves if op.results[out].id in awaited]
        leaving += [(r, i) for r, i, _, _ in flows.carries]
        for at, inner in enumerate(op.regions):
            wanted = (inner.results[i] for r, i in leaving if r == at)
            _visit(inner, [v.id for v in wanted if isinstance(v, Value)], rules, awaited)


def _works(op: Op, rules: Sequence[OpRule]) -> bool:
    inner = (o for r in op.regions for region in walk_regions(r) for o in region.ops)
    return any(rules[o.id].contracts or rules[o.id].blockwise for o in (op, *inner))


@dataclasses.dataclass(slots=True)
class InFlightCollective:
    """A collective, and seconds of it that nothing has hidden yet."""

    kind: str
    axes: str
    seconds: float
    left: float
    op: Op | None
    at: int


class OverlapWindow:
    """Collectives of one region that run behind dots off the critical path.

    Attributes:
      idle: seconds of such dots that hide nothing yet.
      queue: collectives that wait for dots to come.
      begun: all collectives, with the seconds left of each.
    """

    def __init__(self) -> None:
        self.idle = 0.0
        self.queue: collections.deque[InFlightCollective] = collections.deque()
        self.begun: list[InFlightCollective] = []
        self._layers: list[tuple[InFlightCollective, float]] = []

    def work(self, seconds: float) -> None:
        """Runs such dots: waiting collectives are hidden first. Collectives of the dots' own
        results come later and run behind others; sums over a step are the same but for one dot.
        """
        while self.queue and seconds > 0.0:
            first = self.queue[0]
            share = min(first.left, seconds)
            first.left -= share
            seconds -= share
            if first.left <= 0.0:
                self.queue.popleft()
        self.idle += seconds

    def begin(self, found: InFlightCollective, *, waits: bool, layers: int = 1) -> None:
        """Begins a collective, which dots before it hide.

        Args:
          waits: whether it may be deferred as well, as no dot needs its result.
          layers: number of collectives that it stands for in a fold: dots of one layer hide it in
            the next.
        """
        self.begun.append(found)
        share = min(self.idle, found.left)
        self.idle -= share
        found.left -= share
        if found.left and waits:
            self.queue.append(found)
        elif found.left and layers > 1:
            self._layers.append((found, found.left * (layers - 1) / layers))

    def end(self) -> None:
        """Ends the window: no dot is left to defer."""
        for found, most in self._layers:
            share = min(self.idle, most)
            self.idle -= share
            found.left -= share
        self.idle, self._layers = 0.0, []
