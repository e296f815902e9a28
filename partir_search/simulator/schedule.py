"""Schedule of a device-local program: the position and cost of each instruction."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from partir_search.ir.core import Op, Region
from partir_search.ir.partition import Partition
from partir_search.lowering.local_ir import (
    Instruction,
    LocalProgram,
    LocalRegion,
    Reshard,
    RingTurn,
)
from partir_search.simulator.arrays import Bools, Floats, Ints
from partir_search.simulator.printing import table
from partir_search.simulator.time.collective_cost import CollectiveCost, CollectiveCosts

Scheduled = tuple[Instruction, int, CollectiveCost | None, bool]
"""An instruction of a region, with three annotations:

- The position of its op in the region; for a reshard of the region's results, the number of ops.
- The cost of a reshard; None for an op.
- True for a reshard of an argument of the region.
"""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class ScheduledRegion:
    """Schedule of one region on one device.

    Attributes:
      region: the region.
      members: [ops] ids of the region's ops.
      seconds: [ops] seconds of compute of each op in one run of the region.
      spent: [ops + 1] seconds of compute before each op, and in total.
      beside_gathers: [ops + 1] `spent` of the kernels that an all_gather may run beside.
      steps: annotated instructions, in order.
      inner: by number of an instruction with regions, the schedule and trip count of each region;
        None for the schedule of a region without instructions.
    """

    region: Region
    members: Ints
    seconds: Floats
    spent: Sequence[float]
    beside_gathers: Sequence[float]
    steps: Sequence[Scheduled]
    inner: Mapping[int, Sequence[tuple[ScheduledRegion | None, float]]]

    def __str__(self) -> str:
        rows = [
            (at, self.spent[min(at, len(self.members))], _name(item), cost.seconds if cost else "")
            for item, at, cost, _ in self.steps
        ]
        head = ("position", "compute before, s", "instruction", "collective, s")
        return table("ScheduledRegion", head, rows)

    def all_costs(self) -> Iterator[CollectiveCost]:
        """Costs of all reshards of the region and of all regions inside."""
        yield from (cost for _, _, cost, _ in self.steps if cost)
        for regions in self.inner.values():
            for region, _ in regions:
                if region is not None:
                    yield from region.all_costs()


def schedule(
    program: LocalProgram, seconds_of: Floats, hides_gathers: Bools, costs: CollectiveCosts
) -> ScheduledRegion:
    """Schedules a program.

    Args:
      seconds_of: [ops] seconds of one run of each op.
      hides_gathers: [ops] True for an op whose kernel an all_gather may run beside.
    """
    beside_of = np.where(hides_gathers, seconds_of, 0.0)
    return _schedule(program.body, program.partition, seconds_of, beside_of, costs)


def _schedule(
    body: LocalRegion,
    partition: Partition,
    seconds_of: Floats,
    beside_of: Floats,
    costs: CollectiveCosts,
) -> ScheduledRegion:
    """Schedules a region and all regions inside."""
    def_use = partition.def_use
    members, position = def_use.members[body.region], def_use.position
    seconds = seconds_of[members]
    spent = [0.0, *np.cumsum(seconds).tolist()]
    beside = [0.0, *np.cumsum(beside_of[members]).tolist()]
    constants = partition.module.constants
    arguments, args = def_use.arguments(body.region), body.args
    steps: list[Scheduled] = []
    inner: dict[int, list[tuple[ScheduledRegion | None, float]]] = {}
    at, done = 0, None  # the next op's position, and the op before
    for item in body.steps:
        op: Op | None = item.op
        if isinstance(item, Reshard):
            if op is None:
                at = 0 if item.source.value.id in constants else len(members)
            elif op is not done:
                at = int(position[op.id])
            source = item.source
            place = arguments.get(source.value.id)
            is_argument = place is not None and args[place] is source
            steps.append((item, at, costs.cost(item), is_argument))
            continue
        if op is not done:
            at = int(position[item.op.id])
        steps.append((item, at, None, False))
        if isinstance(item, RingTurn) and not item.last:
            continue
        if item.regions:
            trips = partition.rules[item.op.id].data_flow.trip_counts
            inner[len(steps) - 1] = [
                (_schedule(b, partition, seconds_of, beside_of, costs) if b.steps else None, n)
                for b, n in zip(item.regions, trips, strict=True)
            ]
        done = item.op
        at += 1
    return ScheduledRegion(body.region, members, seconds, spent, beside, steps, inner)


def _name(item: object) -> str:
    if isinstance(item, Reshard):
        return f"{item.step.kind} {item.source.value.name}"
    op = getattr(item, "op", None)
    return f"{op.prim} {op.results[0].name}" if op and op.results else str(item)
