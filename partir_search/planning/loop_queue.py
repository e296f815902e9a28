"""Loops over microbatches to plan, as the plans made so far require."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Sequence

from partir_search.ir.core import Module
from partir_search.passes.pipeline.module import stage_carries
from partir_search.plan.plan import Plan
from partir_search.plan.rewrites import Rewrites
from partir_search.planning.contest import slowed
from partir_search.planning.trace import Traced

FURTHER = 2  # shares of a layer's residuals to spare that are tried, at most
PARTS = 1000  # shares are whole multiples of one part
AGAIN_SECONDS = 1 / 3  # of a step that forward passes take, run again to spare all residuals


class LoopQueue:
    """Loops over microbatches in the order of planning; ends once a plan fits and is not slow.

    The number of microbatches of one loop, or of ops of a layer that run again, may be too small
    for the memory. Between no op and the next number, ops of the fewest operations are chosen that
    spare the bytes by which known strategies exceed the limit.
    """

    def __init__(self, loops: Sequence[Rewrites]) -> None:
        self._left = collections.deque(loops)
        self._planned: set[Rewrites] = set()
        self._tried = 0
        self._ends = False

    def __iter__(self) -> Iterator[Rewrites]:
        while self._left and not self._ends:
            yield self._left.popleft()

    def is_new(self, rewrites: Rewrites) -> bool:
        """Records rewrites of a program; True unless equal rewrites were recorded before.

        Equal rewrites arise from a number of ops to run again beyond those of a layer.
        """
        if rewrites in self._planned:
            return False
        self._planned.add(rewrites)
        return True

    def add(self, plan: Plan, traced: Traced) -> None:
        """Adds the plan of a form of a traced call with the loop given last."""
        if plan.fits and not plan.short_of_memory and not slowed(plan):
            self._ends = True
        elif self._tried < FURTHER and self._left:
            further = spared_loop(plan, traced)
            if further is not None and further not in self._left:
                self._tried += 1
                self._left.appendleft(further)


def spared_loop(plan: Plan, traced: Traced) -> Rewrites | None:
    """The loop with fewer residuals, so that the fastest known strategy fits; None if none can.

    The bytes to spare are those beyond the limit. Residuals are taken to be tiled on all devices.

    Args:
      plan: of a program without a number of ops to run again, for the costs of known strategies.
      traced: the program.
    """
    if not traced.rewrites.pipeline:
        return None
    (form,) = traced.rewrites.pipeline
    waiting = waiting_bytes(traced.module) / plan.mesh_shape.user.devices
    if (form.again and not form.spared) or not waiting:
        return None
    costs = [cost for search in plan.searches for _, cost in search.known] or [plan.cost]
    found = []
    for cost in costs:
        share = max(0.0, cost.peak_bytes - plan.memory_limit) / waiting
        share += form.spared
        if form.spared < share < 1.0:
            found.append((cost.seconds * (1.0 + AGAIN_SECONDS * share), share))
    if not found:
        return None
    share = -(-min(found)[1] * PARTS // 1) / PARTS
    form = dataclasses.replace(form, again=0, spared=share)
    return dataclasses.replace(traced.rewrites.loop, pipeline=(form,))


def waiting_bytes(module: Module) -> int:
    """Bytes of slots and carries of a pipeline, of all stages."""
    return sum(x.type.nbytes for x in stage_carries(module.body.ops))
