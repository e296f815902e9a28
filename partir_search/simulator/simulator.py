"""Walks a device-local program: seconds, peak bytes, flops, bytes per axis and per kind.

Roofline seconds per kernel, alpha-beta seconds per collective (`time/collectives.py`), overlap
where the target overlaps, and the live-memory curve with donation (`memory/liveness.py`). Loops
multiply by their trip count. The model of a module is built once; a state costs one walk over its
moves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from partir_search.lowering.local_ir import LocalProgram
from partir_search.lowering.reshard import COLLECTIVES
from partir_search.messages.wording import amount
from partir_search.simulator.memory.buffers import Floats
from partir_search.simulator.program_model import ProgramModel
from partir_search.simulator.time.roofline import Load
from partir_search.simulator.time.split_seconds import split_seconds
from partir_search.simulator.time.walk import Walk


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one step of a program on one device.

    Attributes:
      seconds: whole step; `compute_seconds` + `collective_seconds` (exposed ones only).
      peak_bytes: most bytes live at once, arguments included.
      flops: floating-point operations on one device.
      bytes_by_axis / bytes_by_kind: bytes sent by one device.
    """

    seconds: float
    compute_seconds: float
    collective_seconds: float
    peak_bytes: float
    argument_bytes: float
    flops: float
    bytes_by_axis: Mapping[str, float]
    bytes_by_kind: Mapping[str, float]

    def __str__(self) -> str:
        return (
            f"{self.seconds * 1e3:.3f} ms ({self.collective_seconds * 1e3:.3f} ms exposed"
            f" communication), peak {amount(self.peak_bytes)}"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class OpCost:
    """One kernel's or collective's part of a step on one device.

    Attributes:
      kind: the primitive, or the collective.
      value: what it computes or moves.
      times: runs per step; `seconds`, `flops` and `bytes` are of all runs together.
    """

    kind: str
    value: str
    source: str
    times: float
    seconds: float
    flops: float
    bytes: float


class CostModel(ProgramModel):
    """Costs of the device-local programs of one module on one machine."""

    def breakdown(self, program: LocalProgram) -> tuple[OpCost, ...]:
        """Every kernel and collective of the program, dearest first.

        Collectives count in full here, also where `evaluate` finds them hidden by compute.
        """
        partition, k = program.partition, self.kernels
        load, rows = Load(self, partition), list[OpCost]()
        partial: dict[int, int] = {}
        for move, _ in program.moves():
            if move.step.monoid:
                partial.setdefault(move.source.value.id, move.source.nbytes)
        seconds_of = load.seconds.copy()
        for kernel, longer in split_seconds(self.cuts, load, partial).items():
            seconds_of[kernel] += longer
        spent = (load.flops.tolist(), load.moved.tolist(), seconds_of.tolist())
        for op_id, times, *total in zip(k.op.tolist(), k.times.tolist(), *spent, strict=True):
            op = self.module.ops[op_id]
            flops, moved, seconds = total
            name = op.results[0].name
            rows.append(OpCost(op.prim, name, op.source, times, seconds, flops, moved))
        for move, trips in program.moves():
            if move.step.kind in COLLECTIVES:
                times = trips * self.inside.runs(move)
                step, payload = move.step, move.payload_bytes * self.width(move)
                seconds = self.transfer(step, payload, partition.mesh)[0]
                source = move.op.source if move.op else ""
                name = move.source.value.name
                rows.append(
                    OpCost(step.kind, name, source, times, seconds * times, 0.0, payload * times)
                )
        for own, op, trips in program.own_collectives():
            seconds = self.own_seconds(own, partition.mesh)[0] * trips * op.count
            runs = trips * op.count
            sent = float(own.nbytes) * runs
            rows.append(OpCost(own.kind, own.value, op.source, runs, seconds, 0.0, sent))
        return tuple(sorted(rows, key=lambda r: -r.seconds))

    def evaluate(self, program: LocalProgram, load: Load | None = None) -> Cost:
        """The cost of a device-local program of this model's module.

        Args:
          load: of the program's partition, if it is known already.
        """
        return self.walked(program, load)[0]

    def least(self, load: Load) -> Cost:
        """A cost that no program of a partition is below, in any of its figures."""
        return Cost(
            seconds=load.least_seconds,
            compute_seconds=load.least_seconds,
            collective_seconds=0.0,
            peak_bytes=load.least_bytes,
            argument_bytes=load.argument_bytes,
            flops=0.0,
            bytes_by_axis={},
            bytes_by_kind={},
        )

    def walked(
        self, program: LocalProgram, load: Load | None = None, *, notes: bool = False
    ) -> tuple[Cost, Walk, Floats]:
        """The cost, the walk that it comes from (with notes of every collective if asked for), and
        the live bytes along the curve, arguments included.
        """
        partition, machine, k = program.partition, self.machine, self.kernels
        load = load or Load(self, partition)
        by_op = np.zeros(len(self.module.ops))
        by_op[k.op] = load.seconds / np.maximum(k.times, 1e-30)
        walk = Walk(self, partition, load.nbytes, by_op)
        walk.notes = {} if notes else None
        extra = walk.block(program.body, 1.0)
        compute = float(load.seconds.sum()) - walk.spared_seconds
        walk.cuts = split_seconds(self.cuts, load, walk.partial)
        compute += sum(walk.cuts.values())
        compute += walk.copied / machine.attained_hbm_bytes_per_s
        live = load.live_with(walk.sent_casts) + extra[self.curve.position]
        peak = load.argument_bytes + float(np.max(live, initial=0.0))
        cost = Cost(
            seconds=compute + walk.exposed,
            compute_seconds=compute,
            collective_seconds=walk.exposed,
            peak_bytes=peak,
            argument_bytes=load.argument_bytes,
            flops=float(load.flops.sum()) - walk.spared_flops,
            bytes_by_axis=walk.by_axis,
            bytes_by_kind=walk.by_kind,
        )
        return cost, walk, load.argument_bytes + live
