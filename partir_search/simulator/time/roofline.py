"""Lower bound of a partition's cost on one device: kernels, arguments, stored values.

Collectives and copies are left out, so the bound needs no device-local program, and no program of
the partition costs less: searches ask for the bound first.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Set

import numpy as np

from partir_search.ir.partition import Partition
from partir_search.simulator.memory.buffers import Floats
from partir_search.simulator.program_model import ProgramModel


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    """Components of the seconds of each of K kernels, per step.

    Attributes:
      products / vectors / moves: [K] seconds of matrix units, of vector units, and of traffic;
        of all that is fused into one kernel, at its leader.
      own: [K] seconds of each kernel's own traffic.
      runs: [K] in a step.
    """

    products: Floats
    vectors: Floats
    moves: Floats
    own: Floats
    runs: Floats


class Load:
    """Kernels and memory of one device under a partition.

    Attributes:
      nbytes: [values] bytes of each value where it rests.
      flops / moved / seconds: [K] operations, bytes moved and seconds per step of each kernel. A
        fused kernel's seconds stand at its leader.
      parts: what the seconds come from.
      least_seconds: of all kernels; 0 where modes of axes may spare some of them.
      argument_bytes: bytes of arguments and large constants.
    """

    def __init__(self, model: ProgramModel, partition: Partition) -> None:
        self.partition, self._model = partition, model
        k, machine = model.kernels, model.machine
        n, ops, sizes = len(k.op), len(model.module.ops), partition.mesh.sizes
        of_value, of_op = np.ones(len(model.nbytes)), np.ones(ops)
        for rows, size in zip(partition.axes, sizes, strict=True):
            values, loops = rows.tiles_of(size)
            of_value /= values
            of_op /= loops
        self.nbytes: Floats = model.nbytes * of_value
        share = of_op[k.op]
        turns = _turns(partition, ops)[k.op]
        runs = k.times * turns
        self.flops: Floats = k.flops * (share * runs)
        stored = (self.nbytes * model.width_of)[k.touched]
        bandwidth = machine.attained_hbm_bytes_per_s
        self.moved: Floats = k.sums(stored) * runs
        worked = self.moved
        if machine.vmem_bytes_per_s:
            small = stored <= machine.vmem_bytes * machine.traits.vmem_resident_fraction
            np.multiply(stored, bandwidth / machine.vmem_bytes_per_s, out=stored, where=small)
            worked = k.sums(stored) * runs
        passes = model.passes
        walked = np.where(passes.of_result < 0, share, of_value[passes.of_result])
        own, walks = worked / bandwidth, passes.nbytes * walked * runs / bandwidth
        products, vectors, moves = (
            np.bincount(k.leader, each, n).astype(np.float64)
            for each in (self.flops / model.rates, walks, own)
        )
        seconds: Floats = np.where(
            passes.batched,
            np.maximum(products, vectors) + moves,
            np.maximum(products, vectors + moves),
        )
        self.parts = Parts(products, vectors, moves, own, runs)
        starts = runs * machine.kernel_seconds
        self.seconds: Floats = seconds + np.where(k.leader == np.arange(n), starts, 0.0)
        self.least_seconds = 0.0 if partition.modes.streams else float(self.seconds.sum())
        self.argument_bytes = float(model.argument_counts @ self.nbytes)

    @property
    def kernel_seconds(self) -> float:
        """That a kernel takes to start."""
        return self._model.machine.kernel_seconds

    def stored_bytes(self, v: int) -> float:
        """Bytes of a value where it rests, in the width that it is stored in."""
        return float(self.nbytes[v]) * float(self._model.width_of[v])

    def move_seconds(self, nbytes: float) -> float:
        """To read or write a value once."""
        machine = self._model.machine
        largest = machine.vmem_bytes * machine.traits.vmem_resident_fraction
        on_chip = machine.vmem_bytes_per_s and nbytes <= largest
        return nbytes / (machine.vmem_bytes_per_s if on_chip else machine.attained_hbm_bytes_per_s)

    def walk_seconds(self, points: float, itemsize: int) -> float:
        """That vector units take to store so many elements (see `time/vector_units.py`)."""
        machine = self._model.machine
        narrow = itemsize < machine.vector_bytes
        return narrow * points * machine.vector_bytes / machine.attained_hbm_bytes_per_s

    @functools.cached_property
    def live(self) -> Floats:
        """[R] bytes of stored values along the model's curve, arguments apart, if none of the
        model's casts are stored.
        """
        casts = self._model.casts.mask
        return self._model.curve.bytes_at(np.where(casts, 0.0, self.nbytes))

    def live_with(self, casts: Set[int]) -> Floats:
        """The same if some of the casts are stored."""
        if not casts:
            return self.live
        left = self._model.casts.mask.copy()
        left[list(casts)] = False
        return self._model.curve.bytes_at(np.where(left, 0.0, self.nbytes))

    @property
    def least_bytes(self) -> float:
        """No program of the partition has a lower peak."""
        return self.argument_bytes + float(np.max(self.live))


def _turns(partition: Partition, length: int) -> Floats:
    """[ops] products that an op's work is done in: several in a ring."""
    turns = np.ones(length)
    for axes in partition.mesh.triples:
        looped = [partition.axes[a].loop_row >= 0 for a in axes]
        turns[np.all(looped, axis=0)] = partition.mesh.sizes[axes[0]]
    return turns
