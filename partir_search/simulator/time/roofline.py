"""Seconds of kernels on one device under a partition, without collectives and copies.

With D seconds of matrix units, V of vector units and M of traffic, a kernel takes
`max(D, V + M)`, a batched dot `max(D, V) + M`, plus `Machine.kernel_seconds`.

- D = flops / (peak * efficiency), less where operands are not aligned (`time/alignment.py`)
  and in convolutions (`time/convolutions.py`).
- M = bytes of stored values read and written / (hbm_bytes_per_s * hbm_efficiency). Values up to
  `vmem_resident_fraction` of the memory on the chip move at `vmem_bytes_per_s`.
- V: `time/vector_units.py`.

Measured figures of a profile replace the rate of a product and scale the seconds of a kernel
(`time/corrections.py`).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from partir_search.ir.partition import Partition
from partir_search.simulator.arrays import Floats
from partir_search.simulator.memory.tile_padding import TilePadding
from partir_search.simulator.printing import table
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.time.corrections import Corrections
from partir_search.simulator.time.kernels import Kernels
from partir_search.simulator.time.layout_copies import LayoutCopies
from partir_search.simulator.time.local_rates import LocalRates
from partir_search.simulator.time.stack_copies import StackCopies
from partir_search.simulator.time.vector_units import VectorWork


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Components:
    """Components of the seconds of each of K kernels, per step.

    Attributes:
      dots / vectors / moves: [K] seconds of matrix units, of vector units and of traffic; of a
        fused kernel in total, at the leader.
      own: [K] seconds of traffic of each kernel before fusion.
      runs: [K] runs per step.
    """

    dots: Floats
    vectors: Floats
    moves: Floats
    own: Floats
    runs: Floats


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Roofline:
    """Operations, bytes and seconds of K kernels on one device.

    Attributes:
      nbytes: [values] local bytes of each value in its home layout, with padding.
      width: [values] stored bytes as a multiple of the type's.
      rows: [values] number of rows of a row's stack.
      flops / moved: [K] operations and bytes of traffic per step.
      seconds: [K] seconds per step; of a fused kernel in total, at the leader.
      ratio: [K] of seconds to those of the components (`time/corrections.py`); None for 1.
      components: components of the seconds.
      padding: of values that fill no tiles.
    """

    machine: Machine
    nbytes: Floats
    width: Floats
    rows: Floats
    flops: Floats
    moved: Floats
    seconds: Floats
    components: Components
    padding: TilePadding
    ratio: Floats | None = None

    def __str__(self) -> str:
        p = self.components
        columns = (self.flops, self.moved, p.dots, p.vectors, p.moves, self.seconds)
        rows = [(k, *row) for k, row in enumerate(zip(*(x.tolist() for x in columns), strict=True))]
        head = ("kernel", "flops", "bytes", "dots s", "vectors s", "moves s", "seconds")
        return table(f"Roofline: {self.seconds.sum():.6g} s", head, rows)

    def stored_bytes(self, v: int) -> float:
        """Local bytes of a value in its storage dtype."""
        return float(self.nbytes[v]) * float(self.width[v])

    def move_seconds(self, nbytes: float) -> float:
        """Seconds to read or write a value once."""
        machine = self.machine
        largest = machine.vmem_bytes * machine.traits.vmem_resident_fraction
        on_chip = machine.vmem_bytes_per_s and nbytes <= largest
        return nbytes / (machine.vmem_bytes_per_s if on_chip else machine.attained_hbm_bytes_per_s)

    def vector_seconds(self, points: float, itemsize: int) -> float:
        """Seconds of vector units to store `points` elements (`time/vector_units.py`)."""
        machine = self.machine
        narrow = itemsize < machine.vector_bytes
        return narrow * points * machine.vector_bytes / machine.attained_hbm_bytes_per_s


def roofline(
    kernels: Kernels,
    work: VectorWork,
    rates: Floats,
    nbytes: Floats,
    width: Floats,
    rows: Floats,
    partition: Partition,
    machine: Machine,
    padding: TilePadding,
    copies: LayoutCopies,
    stacks: StackCopies,
    corrections: Corrections | None = None,
    alignment: LocalRates | None = None,
    convolutions: LocalRates | None = None,
) -> Roofline:
    """Computes the roofline of a module's K kernels under a partition.

    Args:
      rates: [K] attained matrix rate of each kernel, flops per second.
      nbytes: [values] unpartitioned bytes.
      width: [values] stored bytes as a multiple of the type's.
      rows: [values] number of rows of a row's stack (`memory/stacks.py`).
      padding: of values that fill no tiles.
      copies: between layouts.
      stacks: copies into stacks of scans.
      corrections: by measured figures, if any.
      alignment / convolutions: shares of the rates of the module's products and convolutions, if
        not 1.
    """
    k = kernels
    n, ops, sizes = len(k.op), len(partition.module.ops), partition.mesh.sizes
    of_value, of_op = np.ones(len(nbytes)), np.ones(ops)
    for axis, size in zip(partition.axes, sizes, strict=True):
        values, loops = axis.tiles_of(size)
        of_value /= values
        of_op /= loops
    turned = copies.nbytes(nbytes * of_value * width, partition)
    local = padding.padded(nbytes * of_value, partition)
    share_of_op = of_op[k.op]
    runs = k.times * _turns(partition, ops)[k.op]
    flops: Floats = k.flops * (share_of_op * runs)
    stored = (local * width)[k.touched]
    bandwidth = machine.attained_hbm_bytes_per_s
    moved: Floats = k.sums(stored) * runs
    moved += np.bincount(copies.kernel, 2.0 * turned, n) * runs
    hbm_equivalent = moved  # bytes that main memory would move in the same time
    if machine.vmem_bytes_per_s:
        small = (
            stored * rows[k.touched] <= machine.vmem_bytes * machine.traits.vmem_resident_fraction
        )
        np.multiply(stored, bandwidth / machine.vmem_bytes_per_s, out=stored, where=small)
        small = turned <= machine.vmem_bytes * machine.traits.vmem_resident_fraction
        np.multiply(turned, bandwidth / machine.vmem_bytes_per_s, out=turned, where=small)
        hbm_equivalent = (k.sums(stored) + np.bincount(copies.kernel, 2.0 * turned, n)) * runs
    share = np.where(work.of_result < 0, share_of_op, of_value[work.of_result])
    own, vector_work = hbm_equivalent / bandwidth, work.nbytes * share * runs / bandwidth
    if convolutions:
        rates = convolutions.reduced(rates, partition)
    if corrections and corrections.products:  # measured ones have the features' effect
        rates = corrections.products.replaced(rates, partition)
    if alignment:
        rates = alignment.reduced(rates, partition)
    dots, vectors, moves = (
        np.bincount(k.leader, each, n).astype(np.float64)
        for each in (flops / rates, vector_work, own)
    )
    seconds: Floats = np.where(
        work.batched, np.maximum(dots, vectors) + moves, np.maximum(dots, vectors + moves)
    )
    starts = runs * machine.kernel_seconds
    seconds = seconds + np.where(k.leader == np.arange(n), starts, 0.0)
    seconds += np.bincount(k.leader, starts * k.copies, n)
    ratio = corrections.ratios(partition, n) if corrections else None
    if ratio is not None:
        seconds = seconds * ratio
    if len(stacks.kernel):
        copied = (local * width)[stacks.value]
        found = move_seconds(copied, machine) + move_seconds(copied, machine, stacks.rows)
        found += stacks.vectors * of_value[stacks.value] / bandwidth + machine.kernel_seconds
        leaders = k.leader[stacks.kernel]
        seconds = seconds + np.bincount(leaders, found * runs[stacks.kernel], n)
    components = Components(dots, vectors, moves, own, runs)
    return Roofline(
        machine=machine,
        nbytes=local,
        width=width,
        rows=rows,
        flops=flops,
        moved=moved,
        seconds=seconds,
        components=components,
        padding=padding,
        ratio=ratio,
    )


def move_seconds(stored: Floats, machine: Machine, rows: Floats | float = 1.0) -> Floats:
    """Seconds to read or write values once, from their stored bytes.

    Args:
      rows: bytes of the stacks of a value that is a row, over the row's (`memory/stacks.py`).
    """
    seconds: Floats = np.asarray(stored / machine.attained_hbm_bytes_per_s)
    if machine.vmem_bytes_per_s:
        on_chip = stored * rows <= machine.vmem_bytes * machine.traits.vmem_resident_fraction
        seconds = np.where(on_chip, stored / machine.vmem_bytes_per_s, seconds)
    return seconds


def _turns(partition: Partition, length: int) -> Floats:
    """[ops] turns of each op: the size of the ring for an op in a ring, else 1."""
    turns = np.ones(length)
    for axes in partition.mesh.triples:
        looped = [partition.axes[a].loop_row >= 0 for a in axes]
        turns[np.all(looped, axis=0)] = partition.mesh.sizes[axes[0]]
    return turns
