"""Cost of reshards: seconds and bytes of collectives, and bytes of copies."""

from __future__ import annotations

import dataclasses
import math

from partir_search.ir.core import Op, Value
from partir_search.ir.manual import OwnCollective
from partir_search.ir.mesh import MeshShape
from partir_search.ir.skewed_schedule import Edge
from partir_search.lowering.local_ir import Reshard
from partir_search.lowering.reshard_steps import AllGather, Halo, Permute, Reduction
from partir_search.simulator.program_facts import ProgramFacts
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.target.traits import XlaTraits
from partir_search.simulator.time.collectives import collective_seconds, sent_bytes
from partir_search.simulator.time.layout_copies import padded_rows
from partir_search.simulator.time.permutes import permute_seconds


@dataclasses.dataclass(frozen=True, slots=True)
class CollectiveCost:
    """Seconds and bytes of a reshard.

    Attributes:
      width: bytes of the payload and of the copy, as a multiple of the program's.
      copied: bytes read and written in memory for copies; a collective's own writes are free.
      seconds: duration of the collective, 0 for a local reshard.
      sent: bytes that a device sends.
      axes: names of the collective's mesh axes.
    """

    width: float
    copied: float
    seconds: float
    sent: float
    axes: str

    def __str__(self) -> str:
        collective = f" along {self.axes}, {self.sent:.6g} bytes sent" if self.axes else ""
        return f"CollectiveCost: {self.seconds:.6g} s{collective}, {self.copied:.6g} bytes copied"


def dot_read_width(v: Value, traits: XlaTraits) -> float:
    """Width in which a dot reads a value, as a multiple of the program's."""
    return traits.dot_operand_width if v.type.itemsize == 4 else 1.0


def reshard_width(reshard: Reshard, facts: ProgramFacts, traits: XlaTraits) -> float:
    """Width of a reshard's payload and copy, as a multiple of the program's."""
    if isinstance(reshard.step, Reduction) or reshard.to_home or not traits.narrows_dot_operands:
        return 1.0
    v = reshard.source.value
    if facts.for_dots[v.id]:
        return traits.dot_operand_width
    of_dot = reshard.op is not None and facts.contracts[reshard.op.id]
    return dot_read_width(v, traits) if of_dot else 1.0


def sent_payload(reshard: Reshard, facts: ProgramFacts, traits: XlaTraits) -> float:
    """Bytes on the device of a collective's larger side, in the program's type.

    With `XlaTraits.gathers_broadcast_sources`, an all_gather of repeated elements moves at most
    all elements before the broadcast.
    """
    if isinstance(reshard.step, AllGather) and traits.gathers_broadcast_sources:
        source = facts.source_bytes.get(reshard.source.value.id, math.inf)
        return min(float(reshard.payload_bytes), source)
    return float(reshard.payload_bytes)


def gathers_into_donated(reshard: Reshard, facts: ProgramFacts) -> bool:
    """True for an all_gather of a result in a donated argument's buffer."""
    ends = isinstance(reshard.step, AllGather) and (reshard.to_home or reshard.op is None)
    return ends and reshard.source.value.id in facts.donated_results


def slices_written(reshard: Reshard, facts: ProgramFacts) -> bool:
    """True for a slice of the result of an op that writes all of it (a scatter).

    A kernel is costed by its result in the home layout, as if it wrote the slice alone.
    """
    op, smaller = reshard.op, reshard.target.nbytes < reshard.source.nbytes
    made = op is not None and facts.writes_whole[op.id] and reshard.source.value in op.results
    return made and smaller and not reshard.step.communicates


class CollectiveCosts:
    """Costs of reshards on one mesh; costs of reshards shared by several programs are cached."""

    def __init__(self, facts: ProgramFacts, machine: Machine, mesh: MeshShape) -> None:
        self.facts, self.machine, self.mesh = facts, machine, mesh
        self._transfers: dict[tuple[object, ...], tuple[float, float, str]] = {}
        self._kept: dict[Reshard, CollectiveCost] = {}

    def cost(self, reshard: Reshard) -> CollectiveCost:
        """Cost of a reshard."""
        found = self._kept.get(reshard) if reshard.shared else None
        if found is None:
            found = self._cost(reshard)
            if reshard.shared:
                self._kept[reshard] = found
        return found

    def _cost(self, reshard: Reshard) -> CollectiveCost:
        machine, traits, step = self.machine, self.machine.traits, reshard.step
        width, grown = reshard_width(reshard, self.facts, traits), reshard.target.nbytes
        copied, taken = 0.0, (0.0, 0.0, "")
        halo = step if isinstance(step, Halo) else None
        if grown > reshard.source.nbytes or halo:
            copied = (1.0 if step.communicates else 2.0) * grown * width
            if halo and not halo.joined:  # a kernel for each fetched block
                bandwidth = machine.attained_hbm_bytes_per_s
                copied = 2.0 * (grown - reshard.source.nbytes) * width
                copied += len(reshard.received) * machine.kernel_seconds * bandwidth
            elif halo and self._fuses(halo, reshard.op):
                copied = 0.0
        if not step.communicates and grown < reshard.source.nbytes:
            copied += self._sliced(reshard) * width
        if step.communicates:
            pairs = step.pairs if isinstance(step, Permute) else None
            payload = sent_payload(reshard, self.facts, traits) * width
            taken = self.transfer(step.kind, step.axes, payload, pairs)
            factor = traits.collective_copy_factors.get(step.kind, 0.0)
            copied += factor * reshard.payload_bytes * width
        if traits.copies_gather_into_donated and gathers_into_donated(reshard, self.facts):
            # A value that fits the memory on the chip is copied from there beside kernels.
            on_chip = machine.vmem_bytes * traits.vmem_resident_fraction
            copied += 2.0 * grown if grown >= on_chip else 0.0
        return CollectiveCost(width, copied, *taken)

    def _sliced(self, reshard: Reshard) -> float:
        """Bytes read and written beside a local slice, which its reader mostly fuses.

        A scatter writes all of its result, and the slice is a kernel of its own. With
        `XlaTraits.stores_values_sliced_twice` so is a value with two slices
        (`ProgramFacts.forked`), of which each slice counts half of the bytes. A slice of partly
        filled rows is copied into the layout of such arrays (`time/layout_copies.py`).
        """
        traits, source, target = self.machine.traits, reshard.source, reshard.target
        whole = slices_written(reshard, self.facts)
        found = float(source.nbytes - target.nbytes) if whole else 0.0
        forked = traits.stores_values_sliced_twice and self.facts.forked[source.value.id]
        if not (whole or forked):
            return 0.0
        shape, layout = source.value.type.shape, target.layout
        row = shape[-1] // math.prod(self.mesh.sizes[a] for a in layout[-1])
        padded = float(padded_rows(row, traits.tile_lanes))
        made = target.nbytes * max(padded, 1.0)
        found += 2.0 * made if whole else float(source.nbytes)
        return found + (2.0 * made if padded else 0.0)

    def _fuses(self, halo: Halo, op: Op | None) -> bool:
        """True if an elementwise consumer reads the tile and its halos in place."""
        return halo.uniform and op is not None and self.facts.elementwise[op.id]

    def transfer(
        self,
        kind: str,
        axes: tuple[int, ...],
        payload: float,
        pairs: tuple[Edge, ...] | None = None,
    ) -> tuple[float, float, str]:
        """Seconds of a collective, bytes that a device sends, names of the axes.

        Args:
          pairs: of a permute of whole tiles.
        """
        mesh = self.mesh
        key = (kind, payload, axes, pairs)
        found = self._transfers.get(key)
        if found is None:
            n = math.prod(mesh.sizes[axis] for axis in axes)
            found = self._transfers[key] = (
                permute_seconds([(pairs, axes, payload)], mesh, self.machine)
                if pairs
                else collective_seconds(kind, payload, axes, mesh, self.machine),
                sent_bytes(kind, payload, n),
                ",".join(mesh.names[a] for a in axes),
            )
        return found

    def of_own(self, own: OwnCollective) -> tuple[float, float, str]:
        """`transfer` of a collective in the user's own `shard_map` region."""
        axes = tuple(a for name in own.axes for a in self.mesh.axes(name))
        return self.transfer(own.kind, axes, own.nbytes)
