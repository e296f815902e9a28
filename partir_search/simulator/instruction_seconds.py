"""Simulated seconds of single instructions of a device-local program."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from partir_search.ir.core import Op, walk_regions
from partir_search.lowering.local_ir import Instruction, LocalProgram, Reshard, RingTurn
from partir_search.simulator.arrays import Floats
from partir_search.simulator.schedule import ScheduledRegion
from partir_search.simulator.simulator import CostModel, Simulation


@dataclasses.dataclass(frozen=True, slots=True)
class Spent:
    """Seconds per step, over all runs of an instruction.

    Attributes:
      compute: kernels and copies.
      exposed: seconds of collectives not hidden by compute.
    """

    compute: float
    exposed: float


def seconds_of_ops(model: CostModel, found: Simulation) -> Floats:
    """[ops] seconds per step of each op, without ops of regions."""
    times = np.zeros(len(model.module.ops))
    kernels = model.time.kernels
    times[kernels.op] = kernels.times
    total = found.seconds_of * times
    for kernel, added in found.split.seconds.items():
        total[kernels.op[kernel]] += added
    return total


def with_regions(op: Op, seconds: Floats) -> float:
    """Seconds of an op and of all ops inside.

    Args:
      seconds: [ops] result of `seconds_of_ops`.
    """
    inner = (o for r in op.regions for region in walk_regions(r) for o in region.ops)
    return float(seconds[op.id]) + sum(float(seconds[o.id]) for o in inner)


def instruction_seconds(
    model: CostModel, program: LocalProgram, found: Simulation
) -> dict[int, Spent]:
    """Seconds by `id()` of each instruction, nested ones included.

    Exposed seconds of a loop are shared among the collectives inside by their durations. Copies of
    turns of rings are no instruction's.

    Args:
      model: of the program's module, not of a quotient.
      program: complete program, with all ops and not only the moves.
      found: simulation of the program, recorded.
    """
    seconds, rate = seconds_of_ops(model, found), model.machine.attained_hbm_bytes_per_s
    regions = model.memory.regions
    spent: dict[int, Spent] = {}

    def compute(item: Instruction, copied: float, times: float) -> float:
        if isinstance(item, Reshard):
            return copied * times * regions.runs(item) / rate
        turns = item.turns if isinstance(item, RingTurn) else 1
        return with_regions(item.op, seconds) / turns

    def walk(scheduled: ScheduledRegion, times: float, outer: float | None) -> None:
        """Adds a region's instructions; `outer` are the exposed seconds of the whole region."""
        longest = sum(_durations(scheduled, times)) or 1.0
        for number, (item, _, cost, _) in enumerate(scheduled.steps):
            records = found.overlap.records.get(id(item), ())
            inner = scheduled.inner.get(number, ())
            parts = [sum(_durations(r, times * n)) if r is not None else 0.0 for r, n in inner]
            own = cost.seconds * times if cost else 0.0
            exposed = sum(r.exposed for r in records)
            if outer is not None:
                exposed = outer * (own + sum(parts)) / longest
            copied = cost.copied if cost else 0.0
            spent[id(item)] = Spent(compute(item, copied, times), exposed)
            for (region, n), part in zip(inner, parts, strict=True):
                if region is not None:
                    walk(region, times * n, exposed * part / (sum(parts) or 1.0))

    walk(found.scheduled, 1.0, None)
    return spent


def _durations(scheduled: ScheduledRegion, times: float) -> Iterator[float]:
    """Seconds per step of each collective of a region and of all regions inside."""
    for number, (_, _, cost, _) in enumerate(scheduled.steps):
        if cost is not None:
            yield cost.seconds * times
        for region, n in scheduled.inner.get(number, ()):
            if region is not None:
                yield from _durations(region, times * n)
