"""Figures of a plan's step with segments of the forward pass computed again, from the plan alone.

Stored values of a segment free their bytes from the last use in the forward pass to the window of
the backward pass that computes the segment again; kernels and exposed collectives of the segment
are paid twice. A rewritten program needs a graph, analyses and decisions of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partir_search.passes.remat import Range, Window, find_windows
from partir_search.plan.facts import PlanFacts
from partir_search.simulator.arrays import Floats
from partir_search.simulator.instruction_seconds import instruction_seconds


def recomputed_figures(plan: PlanFacts, segments: Sequence[Range]) -> tuple[float, float] | None:
    """Seconds of a step and peak bytes of a device with segments computed again.

    Args:
      plan: a plan without recomputed segments.
      segments: disjoint, in program order.

    Returns:
      None for segments without windows (scans).
    """
    windows = find_windows(plan.module, segments)
    if not windows:
        return None
    model, simulation = plan.planned.model, plan.simulation
    again = {plan.module.body.ops[at].id for w in windows for at in w.again}
    spent = instruction_seconds(model, plan.program, simulation)
    seconds = sum(
        spent[id(item)].compute + spent[id(item)].exposed
        for item in plan.program.body.steps
        if item.op is not None and item.op.id in again
    )
    live = simulation.live - _freed(plan, windows)[model.memory.curve.position]
    return plan.cost.seconds + seconds, max(float(np.max(live)), plan.cost.argument_bytes)


def _freed(plan: PlanFacts, windows: Sequence[Window]) -> Floats:
    """[positions] bytes of stored values that are not live until their segment runs again."""
    module, uses = plan.module, plan.partition.def_use
    ranges = plan.planned.model.analysis.buffers.ranges
    nbytes = plan.simulation.load.roofline.nbytes
    made = {
        r.id: (at, w.first) for w in windows for at in w.again for r in module.body.ops[at].results
    }
    changes = np.zeros(len(module.body.ops) + 2)
    columns = (ranges.value, ranges.start, ranges.stop, ranges.weight)
    for value, start, stop, weight in zip(*(c.tolist() for c in columns), strict=True):
        at, first = made.get(value, (0, 0))
        if not start < first <= stop:
            continue
        places = [int(uses.position[user.id]) for user in uses.users[value]]
        last = max((p for p in places if p < first), default=at)
        changes[last + 1] += weight * nbytes[value]
        changes[first] -= weight * nbytes[value]
    found: Floats = np.cumsum(changes)
    return found
