"""Simulator of device-local programs: seconds, peak bytes, flops, and bytes sent.

The models of a module are built once (`models.py`). `CostModel.load` computes the roofline of a
partition's kernels. `CostModel.simulate` schedules the instructions of a program; the schedule
gives the overlap of collectives with compute and the temporaries of redistribution.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

import numpy as np

from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Partition
from partir_search.ir.rule import OpRule
from partir_search.lowering.cache import LocalCache
from partir_search.lowering.local_ir import LocalProgram, Reshard
from partir_search.passes.fold.fold import Folded
from partir_search.simulator.arrays import Floats
from partir_search.simulator.breakdown import cost_by_op
from partir_search.simulator.cost import Cost, OpCost
from partir_search.simulator.memory.curve import Curve, early_curve, early_values, live_curve
from partir_search.simulator.memory.region_summaries import curves_inside
from partir_search.simulator.memory.reordering import Reordered, all_scheduled, reordered, reorders
from partir_search.simulator.memory.step_end import curve_of, waiting_bytes, with_gathers
from partir_search.simulator.memory.temporaries import Temporaries, redistribution_temporaries
from partir_search.simulator.memory.weight_casts import fuse_weight_casts
from partir_search.simulator.models import model_fold, model_program
from partir_search.simulator.printing import table
from partir_search.simulator.program_analysis import (
    ProgramAnalysis,
    analyse_program,
    analysis_with_donations,
)
from partir_search.simulator.schedule import ScheduledRegion, schedule
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.time.collective_cost import CollectiveCosts, reshard_width
from partir_search.simulator.time.fusion_splits import SplitKernels, split_at_partials
from partir_search.simulator.time.overlap import Overlap, overlap
from partir_search.simulator.time.roofline import Roofline, roofline


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class DeviceLoad:
    """Seconds of kernels and live bytes of one device under a partition.

    A load leaves out collectives and copies, and therefore needs no device-local program.

    Attributes:
      argument_bytes: bytes of arguments and constants.
      live: [R] bytes of stored values along the curve, without arguments and weight casts.
    """

    partition: Partition
    roofline: Roofline
    argument_bytes: float
    live: Floats

    def __str__(self) -> str:
        rows = [
            ("seconds of kernels", float(self.roofline.seconds.sum())),
            ("bytes of arguments", self.argument_bytes),
            ("most live bytes without arguments", float(np.max(self.live, initial=0.0))),
        ]
        return table("DeviceLoad", ("", ""), rows)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Simulation:
    """Simulated step of a device-local program: the cost and the results of all stages.

    Attributes:
      seconds_of: [ops] seconds of one run of each op.
      curve: of the program's live bytes; with the rows of the memory model's.
      waiting: [R] bytes of gradients that wait for the all_reduces of others.
      live: [R] live bytes along the curve, arguments included.
      reordered: peak in the compiler's order; None if that is the program's.
    """

    cost: Cost
    load: DeviceLoad
    seconds_of: Floats
    scheduled: ScheduledRegion
    overlap: Overlap
    split: SplitKernels
    temporaries: Temporaries
    curve: Curve
    waiting: Floats
    live: Floats
    reordered: Reordered | None

    def __str__(self) -> str:
        stages = (self.load, self.scheduled, self.overlap, self.split, self.temporaries)
        return "\n".join(map(str, (self.cost, *stages)))


class CostModel:
    """Cost model of the device-local programs of one module on one machine.

    Attributes:
      analysis: of the module, or of the fold's original.
      folded: True for the model of a quotient.
      reorders: True if peaks are in the compiler's order, not in the program's.
      facts / memory / time: models of the module.
    """

    def __init__(
        self,
        module: Module,
        rules: Sequence[OpRule],
        machine: Machine,
        *,
        folded: Folded | None = None,
        original_rules: Sequence[OpRule] | None = None,
        analysis: ProgramAnalysis | None = None,
    ) -> None:
        """Builds the model of a module, or of a quotient that stands for its original.

        Args:
          rules: per op id of `module`.
          folded: fold with `module` as its quotient.
          original_rules: per op id of the fold's original; required with `folded`.
          analysis: of the module or the fold's original; computed by default.
        """
        self.module, self.rules, self.machine = module, rules, machine
        if folded is None:
            self.analysis = analysis or analyse_program(module, rules, machine)
            models = model_program(module, rules, machine, self.analysis)
        else:
            assert original_rules is not None
            self.analysis = analysis or analyse_program(folded.original, original_rules, machine)
            models = model_fold(folded, rules, machine, self.analysis)
        self.folded = folded is not None
        self.reorders = not self.folded and reorders(module, machine)
        self.facts, self.memory, self.time = models.facts, models.memory, models.time
        self._costs: CollectiveCosts | None = None

    def with_donations(self, module: Module) -> CostModel:
        """Model of the same program with other donated arguments."""
        other = copy.copy(self)
        other.module = module
        other.analysis = analysis_with_donations(self.analysis, module, self.rules, self.machine)
        other.facts = dataclasses.replace(self.facts, module=module)
        buffers = other.analysis.buffers
        ranges, inside = buffers.ranges, curves_inside(module.body, self.memory.regions.curves)
        other.memory = dataclasses.replace(
            self.memory,
            curve=live_curve(buffers, self.machine, inside=inside),
            early=early_curve(buffers, self.machine, inside),
            early_values=frozenset(early_values(buffers)),
            casts=fuse_weight_casts(
                self.analysis.weight_casts,
                ranges.value,
                np.arange(len(module.values)),
                len(module.values),
            ),
            live_values=ranges.value,
        )
        other._costs = None
        return other

    def costs(self, mesh: MeshShape) -> CollectiveCosts:
        """Costs of reshards on a mesh, cached for the latest mesh."""
        if self._costs is None or self._costs.mesh is not mesh:
            self._costs = CollectiveCosts(self.facts, self.machine, mesh)
        return self._costs

    def width(self, reshard: Reshard) -> float:
        """Width of a reshard's payload and copy, as a multiple of the program's."""
        return reshard_width(reshard, self.facts, self.machine.traits)

    def load(self, partition: Partition) -> DeviceLoad:
        """Load of a partition of this model's module."""
        memory, time = self.memory, self.time
        found = roofline(
            time.kernels,
            time.work,
            time.rates,
            memory.nbytes,
            memory.width,
            memory.rows,
            partition,
            self.machine,
            memory.padding,
            time.copies,
            time.stacks,
            time.corrections,
            time.alignment,
            time.convolutions,
        )
        arguments = float(memory.argument_counts @ found.nbytes)
        return DeviceLoad(partition, found, arguments, memory.live_bytes(found.nbytes))

    def lower_bound(self, load: DeviceLoad) -> Cost:
        """Lower bound, in every figure, of the costs of a partition's programs.

        Seconds are 0 under modes of axes with which a program may skip kernels. Peaks are the
        arguments where the compiler's order is known, in which fewer values may be live.
        """
        skips = load.partition.modes.windowed_einsums
        seconds = 0.0 if skips else float(load.roofline.seconds.sum())
        peak = load.argument_bytes + (0.0 if self.reorders else float(np.max(load.live)))
        return Cost(
            seconds=seconds,
            compute_seconds=seconds,
            collective_seconds=0.0,
            peak_bytes=peak,
            argument_bytes=load.argument_bytes,
            flops=0.0,
            bytes_by_axis={},
            bytes_by_kind={},
        )

    def least_peak(self, devices: int) -> float:
        """Lower bound, in bytes, of the peaks of all partitions of the module over some devices.

        Every value is tiled on all devices.
        """
        nbytes = self.memory.nbytes / devices
        live = self.memory.live_bytes(nbytes)
        return float(self.memory.argument_counts @ nbytes) + float(np.max(live, initial=0.0))

    def least_seconds(self, devices: int) -> float:
        """Lower bound, in seconds, of the kernels of all partitions of the module over devices.

        Every kernel is spread evenly and starts in no time. 0 under measured figures.
        """
        return float(self.least_kernel_seconds(devices).sum())

    def least_kernel_seconds(self, devices: int) -> Floats:
        """[K] terms of `least_seconds`, at the leader of each fused kernel."""
        machine, time = self.machine, self.time
        kernels, work = time.kernels, time.work
        if time.corrections is not None:
            return np.zeros(len(kernels.op))
        stored = (self.memory.nbytes * self.memory.width)[kernels.touched]
        bandwidth = np.full(len(stored), machine.attained_hbm_bytes_per_s)
        if machine.vmem_bytes_per_s:
            whole = stored * self.memory.rows[kernels.touched]
            near = whole <= devices * machine.vmem_bytes * machine.traits.vmem_resident_fraction
            bandwidth[near] = machine.vmem_bytes_per_s
        moves = kernels.sums(stored / bandwidth) + work.nbytes / machine.attained_hbm_bytes_per_s
        fused = [
            np.bincount(kernels.leader, each * kernels.times, len(kernels.op))
            for each in (kernels.flops / time.rates, moves)
        ]
        least: Floats = np.maximum(*fused) / devices
        return least

    def evaluate(
        self, program: LocalProgram, load: DeviceLoad | None = None, cache: LocalCache | None = None
    ) -> Cost:
        """Cost of a device-local program, see `simulate`."""
        return self.simulate(program, load, cache).cost

    def simulate(
        self,
        program: LocalProgram,
        load: DeviceLoad | None = None,
        cache: LocalCache | None = None,
        *,
        record: bool = False,
    ) -> Simulation:
        """Simulates a step of a device-local program of this model's module.

        Args:
          load: of the program's partition; computed by default.
          cache: of lowered programs of the module and mesh; a new one by default.
          record: True to record every collective (`Overlap.records`).
        """
        facts, memory, time, partition = self.facts, self.memory, self.time, program.partition
        load = load or self.load(partition)
        kernels, found, costs = time.kernels, load.roofline, self.costs(partition.mesh)
        seconds_of = np.zeros(len(self.module.ops))
        seconds_of[kernels.op] = found.seconds / np.maximum(kernels.times, 1e-30)
        scheduled = schedule(program, seconds_of, time.hides_gathers, costs)
        overlapped = overlap(
            scheduled,
            partition,
            seconds_of,
            costs,
            memory.regions,
            time.deferred_runs,
            time.orders,
            record=record,
        )
        split = split_at_partials(time.splits, time.work, found, overlapped.partial)
        temporaries = redistribution_temporaries(
            scheduled,
            partition,
            found.nbytes,
            facts,
            memory,
            time.splits.reduced,
            self.machine.traits,
        )
        traits, nbytes = self.machine.traits, found.nbytes
        temporaries = with_gathers(temporaries, scheduled, facts, memory, traits)
        casts, curve = temporaries.stored_casts, curve_of(scheduled, memory, traits)
        stored, waiting = load.live, np.zeros_like(load.live)
        if casts or (memory.early is not None and curve is not memory.early):
            stored = memory.live_bytes(nbytes, casts, curve)
        if curve is memory.early:
            most = waiting_bytes(scheduled, nbytes, memory, traits)
            late = memory.live_bytes(nbytes, casts, memory.curve)
            waiting = np.clip(late - stored, 0.0, most)
        live = stored + waiting + curve.temporaries_at(temporaries.bytes_at)
        order = self._reordered(program, seconds_of, found, temporaries, curve, cache)
        cost = _cost(load, overlapped, split, live, order.added if order else 0.0, self.machine)
        live = load.argument_bytes + live
        return Simulation(
            cost=cost,
            load=load,
            seconds_of=seconds_of,
            scheduled=scheduled,
            overlap=overlapped,
            split=split,
            temporaries=temporaries,
            curve=curve,
            waiting=waiting,
            live=live,
            reordered=order,
        )

    def _reordered(
        self,
        program: LocalProgram,
        seconds_of: Floats,
        found: Roofline,
        temporaries: Temporaries,
        curve: Curve,
        cache: LocalCache | None,
    ) -> Reordered | None:
        """Peak in the compiler's order; None for a quotient, and if loops hold values on chip."""
        if not self.reorders or len(curve.held.rows):
            return None
        fused, costs = self.memory.casts.mask.copy(), self.costs(program.partition.mesh)
        fused[list(temporaries.stored_casts)] = False
        return reordered(
            all_scheduled(program, seconds_of, self.time.hides_gathers, costs, cache),
            self.analysis,
            np.where(fused, 0.0, found.nbytes),
            temporaries.bytes_at,
            self.machine,
            early=curve is self.memory.early,
        )

    def breakdown(self, program: LocalProgram, *, with_traits: bool = True) -> tuple[OpCost, ...]:
        """Lists all kernels and collectives of a program, most seconds first.

        Seconds of a collective are its whole duration, while `evaluate` counts the exposed seconds.

        Args:
          with_traits: name the compiler's traits behind each cost.
        """
        analysis = None if self.folded else self.analysis
        load, costs = self.load(program.partition), self.costs(program.partition.mesh)
        return cost_by_op(
            program,
            load.roofline,
            costs,
            self.memory.regions,
            self.time,
            self.rules,
            analysis,
            with_traits=with_traits,
        )


def _cost(
    load: DeviceLoad,
    overlapped: Overlap,
    split: SplitKernels,
    live: Floats,
    added: float,
    machine: Machine,
) -> Cost:
    """Cost of a step: totals of all stages.

    Args:
      added: bytes that the compiler's order adds to the peak.
    """
    compute = float(load.roofline.seconds.sum()) - overlapped.skipped_seconds
    compute += sum(split.seconds.values())
    compute += overlapped.copied / machine.attained_hbm_bytes_per_s
    return Cost(
        seconds=compute + overlapped.exposed,
        compute_seconds=compute,
        collective_seconds=overlapped.exposed,
        peak_bytes=load.argument_bytes + float(np.max(live, initial=0.0)) + added,
        argument_bytes=load.argument_bytes,
        flops=float(load.roofline.flops.sum()) - overlapped.skipped_flops,
        bytes_by_axis=overlapped.by_axis,
        bytes_by_kind=overlapped.by_kind,
    )
