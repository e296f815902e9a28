"""Seconds of a simulated step by limit (compute, traffic, links), by kernel and by collective."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from partir_search.lowering.reshard_steps import COLLECTIVES
from partir_search.plan.facts import PlanFacts
from partir_search.simulator.time.roofline import Roofline
from partir_search.simulator.timeline import COMPUTE

MATRIX, VECTOR, TRAFFIC = "matrix units", "vector units", "memory traffic"
STARTS, COPIES = "starts of kernels", "copies"


@dataclasses.dataclass(frozen=True, slots=True)
class KernelRow:
    """Kernels of one primitive at one source line.

    Attributes:
      kind: the primitive.
      source: file and line of the user's code.
      runs: runs per step.
      seconds / flops / bytes: totals per step on one device.
    """

    kind: str
    source: str
    runs: float
    seconds: float
    flops: float
    bytes: float


@dataclasses.dataclass(frozen=True, slots=True)
class CollectiveRow:
    """Collectives of one kind along the same axes at one source line.

    Attributes:
      kind: the collective.
      axes: mesh axes, joined by "+".
      source: file and line of the user's code.
      runs: runs per step.
      seconds / exposed: seconds per step, in all and not hidden by compute.
      bytes: payload on one device per step.
    """

    kind: str
    axes: str
    source: str
    runs: int
    seconds: float
    exposed: float
    bytes: float


def kernel_rows(plan: PlanFacts) -> list[KernelRow]:
    """Kernels of a plan by primitive and source line, most seconds first; without collectives."""
    found: dict[tuple[str, str], KernelRow] = {}
    for row in plan.kernel_costs:
        if row.kind in COLLECTIVES or not row.seconds:
            continue
        key = (row.kind, row.source)
        old = found.get(key, KernelRow(*key, 0.0, 0.0, 0.0, 0.0))
        found[key] = KernelRow(
            *key,
            old.runs + row.times,
            old.seconds + row.seconds,
            old.flops + row.flops,
            old.bytes + row.bytes,
        )
    return sorted(found.values(), key=lambda r: -r.seconds)


def collective_rows(plan: PlanFacts) -> list[CollectiveRow]:
    """Collectives of a plan by kind, axes and source line, most exposed seconds first."""
    runs: dict[tuple[str, str, str], int] = {}
    volume: dict[tuple[str, str, str], float] = {}
    for c in plan.collectives:
        key = (c.kind, "+".join(c.axes), c.source)
        runs[key] = runs.get(key, 0) + c.times
        volume[key] = volume.get(key, 0.0) + float(c.bytes) * c.times
    seconds, exposed = dict.fromkeys(runs, 0.0), dict.fromkeys(runs, 0.0)
    for e in plan.timeline.events:
        if e.lane != COMPUTE:
            key = (e.kind, joined_axes(e.lane), e.source)
            seconds[key] = seconds.get(key, 0.0) + e.seconds
            exposed[key] = exposed.get(key, 0.0) + e.exposed
    rows = [
        CollectiveRow(*k, runs.get(k, 0), seconds[k], exposed[k], volume.get(k, 0.0))
        for k in seconds
    ]
    return sorted(rows, key=lambda r: (-r.exposed, -r.seconds, -r.bytes))


def joined_axes(lane: str) -> str:
    """Mesh axes of a lane of the timeline, joined by "+"."""
    return "+".join(part.strip() for part in lane.split(","))


@dataclasses.dataclass(frozen=True, slots=True)
class StepSeconds:
    """Seconds of a step by limit.

    Attributes:
      compute: seconds of kernels, by the limit of each kernel: matrix units, vector units, memory
        traffic or start; and seconds of copies.
      links: exposed seconds of collectives by mesh axes.
    """

    compute: Mapping[str, float]
    links: Mapping[str, float]

    @property
    def limits(self) -> dict[str, float]:
        """Seconds of all limits, most first; links are named ``links of 'model'``."""
        found = {f"links of {axes!r}": s for axes, s in self.links.items()} | dict(self.compute)
        return dict(sorted(((k, s) for k, s in found.items() if s > 0), key=lambda p: -p[1]))


def step_seconds(plan: PlanFacts) -> StepSeconds:
    """Seconds of a plan's step by limit; the seconds of the step in total."""
    compute = _limits(plan.simulation.load.roofline)
    rest = plan.cost.compute_seconds - sum(compute.values())
    if rest < 0:  # kernels that attention skips
        scale = plan.cost.compute_seconds / sum(compute.values())
        compute = {name: scale * s for name, s in compute.items()}
    compute[COPIES] = max(rest, 0.0)
    links: dict[str, float] = {}
    for e in plan.timeline.events:
        if e.lane != COMPUTE:
            axes = joined_axes(e.lane)
            links[axes] = links.get(axes, 0.0) + e.exposed
    return StepSeconds(compute, links)


def _limits(found: Roofline) -> dict[str, float]:
    """Seconds of kernels by the largest component of each."""
    parts = found.components
    starts = parts.runs * found.machine.kernel_seconds
    columns = np.stack((parts.dots, parts.vectors, parts.moves, starts))
    largest = np.argmax(columns, axis=0)
    sums = np.bincount(largest, found.seconds, 4).tolist()
    return dict(zip((MATRIX, VECTOR, TRAFFIC, STARTS), sums, strict=True))


def matrix_rate(plan: PlanFacts) -> float:
    """Share of the peak matrix rate attained by a step, 0 to 1."""
    rates = plan.machine.flops_per_s
    peak = rates.get("bfloat16", rates["default"])
    return plan.cost.flops / (plan.cost.seconds * peak) if plan.cost.seconds else 0.0
