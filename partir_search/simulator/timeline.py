"""The simulated step as a timeline: compute, collectives per axis, live memory."""

from __future__ import annotations

import dataclasses

import numpy as np

from partir_search.ir.core import Op, walk_regions
from partir_search.lowering.local_ir import Apply, LocalProgram
from partir_search.simulator.simulator import CostModel, Simulation

COMPUTE = "compute"


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """Something that takes time.

    Attributes:
      lane: "compute", or the axes of a collective.
      start, seconds: since the step began, and how long.
      exposed: seconds of it in which nothing else goes on.
    """

    lane: str
    kind: str
    start: float
    seconds: float
    exposed: float
    source: str


@dataclasses.dataclass(frozen=True, slots=True)
class Live:
    """A value that is live at the peak, with the bytes that it takes on the device."""

    name: str
    type: str
    bytes: float
    source: str


@dataclasses.dataclass(frozen=True, slots=True)
class Timeline:
    """One step on one device.

    Attributes:
      seconds: of the whole step.
      events: in order of their starts, per lane.
      memory: (seconds since the step began, live bytes), arguments included.
      live: what is live at the peak besides the arguments, largest first.
      argument_bytes: of all arguments together.
    """

    seconds: float
    events: tuple[Event, ...]
    memory: tuple[tuple[float, float], ...]
    live: tuple[Live, ...]
    argument_bytes: float


def timeline(model: CostModel, program: LocalProgram, most: int = 40) -> Timeline:
    """The timeline of a device-local program of the model's module (not of a fold).

    Args:
      program: all of it, not only what moves.
      most: values to list at the peak.
    """
    found = model.simulate(program, record=True)
    cost, live, curve = found.cost, found.live, model.memory.curve
    spent = _seconds_of_ops(model, program, found)
    position = program.partition.index.position
    began = np.zeros(len(program.body.region.ops) + 1)
    events: list[Event] = []
    now = 0.0
    for item in program.body.steps:
        for n in found.overlap.records.get(id(item), ()):
            start = max(0.0, now - (n.seconds - n.exposed))
            events.append(Event(n.axes, n.kind, start, n.seconds, n.exposed, n.source))
            now += n.exposed
        if isinstance(item, Apply):
            at = int(position[item.op.id])
            began[at] = began[at] or now
            seconds = spent.get(item.op.id, 0.0) / item.turns
            if seconds:
                event = Event(COMPUTE, item.op.prim, now, seconds, seconds, item.op.source)
                events.append(event)
            now += seconds
    copied = cost.seconds - now
    if copied > 1e-12:  # they are not told apart by op
        events.append(Event(COMPUTE, "copies of what is gathered or cut", now, copied, copied, ""))
    began[-1] = cost.seconds
    began = np.maximum.accumulate(began)
    memory = [(float(began[p]), float(b)) for p, b in zip(curve.position, live, strict=True)]
    return Timeline(
        cost.seconds,
        tuple(events),
        tuple(memory),
        _live(model, found.load.roofline.nbytes, live, most),
        cost.argument_bytes,
    )


def _seconds_of_ops(model: CostModel, program: LocalProgram, found: Simulation) -> dict[int, float]:
    """Seconds of each op of the body, with all that its regions do."""
    times = np.zeros(len(model.module.ops))
    kernels = model.time.kernels
    times[kernels.op] = kernels.times
    total = found.seconds_of * times
    for kernel, longer in found.split.seconds.items():
        total[kernels.op[kernel]] += longer

    def whole(op: Op) -> float:
        inner = (o for r in op.regions for region in walk_regions(r) for o in region.ops)
        return float(total[op.id]) + sum(float(total[o.id]) for o in inner)

    return {op.id: whole(op) for op in program.body.region.ops}


def _live(model: CostModel, nbytes: np.ndarray, live: np.ndarray, most: int) -> tuple[Live, ...]:
    ranges, module = model.analysis.buffers.ranges, model.module
    if not len(live):
        return ()
    peak = model.memory.curve.position[int(np.argmax(live))]
    there = np.flatnonzero((ranges.start <= peak) & (ranges.stop >= peak))
    made = {r.id: op for op in module.ops for r in op.results}
    found = []
    for i in there.tolist():
        value = module.values[int(ranges.value[i])]
        size = float(nbytes[value.id] * ranges.weight[i])
        source = made[value.id].source if value.id in made else ""
        found.append(Live(value.name, str(value.type), size, source))
    return tuple(sorted(found, key=lambda v: -v.bytes)[:most])
