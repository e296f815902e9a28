"""Timeline of a simulated step: compute, collectives by axis, live memory."""

from __future__ import annotations

import dataclasses

import numpy as np

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.printing.paths import op_paths
from partir_search.lowering.local_ir import LocalOp, LocalProgram, RingTurn
from partir_search.simulator.arrays import Floats
from partir_search.simulator.cost import Cost
from partir_search.simulator.instruction_seconds import seconds_of_ops, with_regions
from partir_search.simulator.memory.reordering import Reordered
from partir_search.simulator.simulator import CostModel, Simulation

COMPUTE = "compute"


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """Interval of compute, or of a collective.

    Attributes:
      lane: "compute", or the axes of the collective.
      kind: primitive of the op, or kind of the collective.
      start: seconds since the start of the step.
      seconds: duration.
      exposed: seconds of a collective not hidden by compute; all seconds of compute.
      source: file and line of the op in the user's program.
      scope: name stack of the op.
      path: block of an op of compute: scopes, or modules of the weights that it reads.
      backward: True for an op of compute made by reverse-mode differentiation.
    """

    lane: str
    kind: str
    start: float
    seconds: float
    exposed: float
    source: str
    scope: str = ""
    path: tuple[str, ...] = ()
    backward: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Live:
    """Value live at the peak, with its bytes on the device."""

    name: str
    type: str
    bytes: float
    source: str


@dataclasses.dataclass(frozen=True, slots=True)
class Timeline:
    """Timeline of one step on one device.

    Attributes:
      seconds: duration of the step.
      events: in order of start, per lane.
      memory: (seconds since the start of the step, live bytes), arguments included, in the order of
        the compiler where it reorders kernels.
      live: values live at the peak without the arguments, largest first.
      argument_bytes: total bytes of the arguments.
    """

    seconds: float
    events: tuple[Event, ...]
    memory: tuple[tuple[float, float], ...]
    live: tuple[Live, ...]
    argument_bytes: float


def timeline(
    model: CostModel, program: LocalProgram, found: Simulation, most: int = 40
) -> Timeline:
    """Computes the timeline of a device-local program.

    Args:
      model: of the program's module, not of a quotient.
      program: complete program, with all of its ops and not only the moves.
      found: recorded simulation of the program.
      most: most values to list at the peak.
    """
    cost, live, curve = found.cost, found.live, model.memory.curve
    seconds_of = seconds_of_ops(model, found)
    position = program.partition.def_use.position
    paths = op_paths(model.module)
    began = np.zeros(len(program.body.region.ops) + 1)
    events: list[Event] = []
    now = 0.0
    for item in program.body.steps:
        for each in found.overlap.records.get(id(item), ()):
            start = max(0.0, now - (each.seconds - each.exposed))
            where = each.source, each.scope
            events.append(Event(each.axes, each.kind, start, each.seconds, each.exposed, *where))
            now += each.exposed
        if isinstance(item, LocalOp):
            at = int(position[item.op.id])
            began[at] = began[at] or now
            turns = item.turns if isinstance(item, RingTurn) else 1
            seconds = with_regions(item.op, seconds_of) / turns
            if seconds:
                op = item.op
                block = tuple(paths[op.id]), op.backward
                made = op.source, op.scope, *block
                events.append(Event(COMPUTE, op.prim, now, seconds, seconds, *made))
            now += seconds
    copied = cost.seconds - now
    if copied > 1e-12:  # the simulator does not attribute copies to ops
        events.append(
            Event(COMPUTE, "copies of gathered and sliced values", now, copied, copied, "")
        )
    began[-1] = cost.seconds
    began = np.maximum.accumulate(began)
    memory = [(float(began[p]), float(b)) for p, b in zip(curve.position, live, strict=True)]
    if found.reordered is not None:
        memory = _memory(model, found.reordered, seconds_of, cost)
    return Timeline(
        cost.seconds,
        tuple(events),
        tuple(memory),
        _live(model, found, most),
        cost.argument_bytes,
    )


def _memory(
    model: CostModel, order: Reordered, seconds_of: Floats, cost: Cost
) -> list[tuple[float, float]]:
    """Seconds since the start of the step and live bytes, along the compiler's order.

    Args:
      seconds_of: [ops] seconds of each op.
    """
    ops = model.module.body.ops
    spent = np.array(
        [with_regions(ops[at], seconds_of) if at >= 0 else 0.0 for at in order.position]
    )
    ended = np.cumsum(spent)
    began = (ended - spent) * (cost.seconds / max(float(ended[-1]), 1e-30))
    live = order.live + (cost.peak_bytes - float(np.max(order.live)))
    return list(zip(began.tolist(), live.tolist(), strict=True))


def _live(model: CostModel, found: Simulation, most: int) -> tuple[Live, ...]:
    """Values in main memory at the peak, largest first."""
    ranges, module = model.analysis.buffers.ranges, model.module
    nbytes, live, curve = found.load.roofline.nbytes, found.live, found.curve
    stop = ranges.early_stop if curve is model.memory.early else ranges.stop
    if not len(live):
        return ()
    row = int(np.argmax(live))
    peak = curve.position[row]
    on_chip = curve.row_weights(row, nbytes)[0] == 0.0
    alive = (ranges.start <= peak) & (stop >= peak) & ~on_chip[ranges.value]
    if found.reordered is not None:
        alive = found.reordered.alive
    makers = def_use(module).makers
    rows = []
    for i in np.flatnonzero(alive).tolist():
        value = module.values[int(ranges.value[i])]
        size = float(nbytes[value.id] * ranges.weight[i])
        maker = makers[value.id]
        source = maker.source if maker else ""
        rows.append(Live(value.name, str(value.type), size, source))
    return tuple(sorted(rows, key=lambda v: -v.bytes)[:most])
