"""Simulated parts of a stretch of a program, as a profile keeps them beside measured seconds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from partir_search.ir.core import walk_regions
from partir_search.lowering.local_ir import LocalProgram, LocalRegion, Reshard
from partir_search.profile.entries import CollectiveKey, CollectivePart, KernelPart
from partir_search.simulator.arrays import Floats
from partir_search.simulator.simulator import CostModel, Simulation
from partir_search.simulator.time.collectives import collective_key, collective_ratio
from partir_search.simulator.time.contents import KernelContents, kernel_contents


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    """Simulated seconds of one run, before any correction by measured segments.

    Attributes:
      kernels / collectives: by content, and by kind and group.
      copies: seconds of copies.
      further: seconds of collectives that no segment corrects (`time/collectives.py`).
      durations: seconds of all collectives, after correction.
    """

    kernels: tuple[KernelPart, ...]
    collectives: tuple[CollectivePart, ...]
    copies: float
    further: float
    durations: float


class PartsOf:
    """Parts of stretches of one simulated program."""

    def __init__(self, model: CostModel, program: LocalProgram, found: Simulation) -> None:
        """Prepares a program.

        Args:
          model: of the program's module, not of a quotient.
          program: complete program, with all of its ops and not only the moves.
          found: simulation of the program.
        """
        self._model, self._program = model, program
        corrections = model.time.corrections
        self._contents: KernelContents = (
            corrections.contents
            if corrections
            else kernel_contents(model.module, model.rules, model.time.kernels)
        )
        self._local = self._contents.sizes.local(program.partition)
        roofline = found.load.roofline
        seconds = roofline.seconds.copy()
        for k, added in found.split.seconds.items():
            seconds[k] += added
        self._seconds: Floats = seconds if roofline.ratio is None else seconds / roofline.ratio
        self._leading_op = model.time.kernels.op[self._contents.kernel]

    def whole(self) -> Parts:
        """Parts of the whole program."""
        return self.of(self._program.body)

    def of(self, region: LocalRegion, runs: float = 1.0) -> Parts:
        """Parts of one run of a stretch.

        Args:
          region: the stretch, as a region of its own.
          runs: runs of the stretch per step.
        """
        return Parts(self._kernels(region, runs), *self._moves(region))

    def _kernels(self, region: LocalRegion, runs: float) -> tuple[KernelPart, ...]:
        inside = np.zeros(len(self._model.module.ops), dtype=np.bool_)
        for item in region.steps:
            if not isinstance(item, Reshard):
                inside[item.op.id] = True
                for inner in item.op.regions:
                    inside[[op.id for r in walk_regions(inner) for op in r.ops]] = True
        sums: dict[tuple[str, str, tuple[int, ...]], float] = {}
        for i in np.flatnonzero(inside[self._leading_op]).tolist():
            seconds = float(self._seconds[self._contents.kernel[i]]) / runs
            sizes = tuple(int(n) for n in self._local[i] if n)
            key = self._contents.kinds[i], self._contents.contents[i], sizes
            if seconds > 0:
                sums[key] = sums.get(key, 0.0) + seconds
        return tuple(KernelPart(*key, seconds) for key, seconds in sums.items())

    def _moves(self, region: LocalRegion) -> tuple[tuple[CollectivePart, ...], float, float, float]:
        model, mesh = self._model, self._program.partition.mesh
        costs, machine = model.costs(mesh), model.machine
        copies = further = durations = 0.0
        sums: dict[CollectiveKey, float] = {}
        for reshard, trips in self._reshards(region, 1.0):
            cost, runs = costs.cost(reshard), trips * model.memory.regions.runs(reshard)
            copies += cost.copied * runs / machine.attained_hbm_bytes_per_s
            if not reshard.step.communicates:
                continue
            links = reshard.step.kind, reshard.step.axes, mesh, machine
            key = collective_key(*links)
            durations += cost.seconds * runs
            if key is None:
                further += cost.seconds * runs
            else:
                seconds = cost.seconds * runs / collective_ratio(*links)
                sums[key] = sums.get(key, 0.0) + seconds
        parts = tuple(CollectivePart(*key, seconds) for key, seconds in sums.items())
        return parts, copies, further, durations

    def _reshards(self, region: LocalRegion, trips: float) -> Iterator[tuple[Reshard, float]]:
        for item in region.steps:
            if isinstance(item, Reshard):
                yield item, trips
                continue
            counts = self._model.rules[item.op.id].data_flow.trip_counts
            for inner, n in zip(item.regions, counts, strict=False):
                yield from self._reshards(inner, trips * n)
