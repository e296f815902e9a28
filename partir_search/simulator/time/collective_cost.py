"""Cost of moves: seconds and bytes of collectives, and bytes of copies."""

from __future__ import annotations

import dataclasses
import math

from partir_search.ir.core import Value
from partir_search.ir.manual import OwnCollective
from partir_search.ir.mesh import MeshShape
from partir_search.lowering.halo import Stretch
from partir_search.lowering.local_ir import Move
from partir_search.lowering.reshard import COLLECTIVES, Shuffle, Step
from partir_search.simulator.program_facts import ProgramFacts
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.target.traits import XlaTraits
from partir_search.simulator.time.collectives import collective_seconds, sent_bytes
from partir_search.simulator.time.permutes import permute_seconds


@dataclasses.dataclass(frozen=True, slots=True)
class CollectiveCost:
    """Seconds and bytes of a move.

    Attributes:
      width: bytes of the payload and of the copy, as a multiple of the program's.
      copied: bytes read and written in memory for copies; a collective's own writes are free.
      seconds: duration of the collective, 0 for a local move.
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


def move_width(move: Move, facts: ProgramFacts, traits: XlaTraits) -> float:
    """Width of a move's payload and copy, as a multiple of the program's."""
    if move.step.monoid or move.rests or not traits.narrows_dot_operands:
        return 1.0
    v = move.source.value
    if facts.for_dots[v.id]:
        return traits.dot_operand_width
    of_dot = move.op is not None and facts.contracts[move.op.id]
    return dot_read_width(v, traits) if of_dot else 1.0


def gathers_into_donated(move: Move, facts: ProgramFacts) -> bool:
    """True for an all_gather of a result in a donated argument's buffer."""
    ends = move.step.kind == "all_gather" and (move.rests or move.op is None)
    return ends and move.source.value.id in facts.donated_results


class CollectiveCosts:
    """Costs of moves on one mesh; costs of moves shared by several programs are cached."""

    def __init__(self, facts: ProgramFacts, machine: Machine, mesh: MeshShape) -> None:
        self.facts, self.machine, self.mesh = facts, machine, mesh
        self._transfers: dict[tuple[object, ...], tuple[float, float, str]] = {}
        self._kept: dict[Move, CollectiveCost] = {}

    def cost(self, move: Move) -> CollectiveCost:
        """Cost of a move."""
        found = self._kept.get(move) if move.shared else None
        if found is None:
            found = self._cost(move)
            if move.shared:
                self._kept[move] = found
        return found

    def _cost(self, move: Move) -> CollectiveCost:
        machine, traits, step = self.machine, self.machine.traits, move.step
        width, grown = move_width(move, self.facts, traits), move.target.nbytes
        copied, taken = 0.0, (0.0, 0.0, "")
        if grown > move.source.nbytes or step.kind == "window":
            copied = (1.0 if step.kind in COLLECTIVES else 2.0) * grown * width
            if move.beside:  # a kernel for each fetched block
                bandwidth = machine.attained_hbm_bytes_per_s
                copied = 2.0 * (grown - move.source.nbytes) * width
                copied += len(move.blocks) * machine.kernel_seconds * bandwidth
            elif step.kind == "window" and self._fuses(move):
                copied = 0.0
        if step.kind in COLLECTIVES:
            taken = self.transfer(step, move.payload_bytes * width)
            factor = traits.collective_copy_factors.get(step.kind, 0.0)
            copied += factor * move.payload_bytes * width
        if traits.copies_gather_into_donated and gathers_into_donated(move, self.facts):
            # A value that fits the memory on the chip is copied from there beside kernels.
            on_chip = machine.vmem_bytes * traits.vmem_resident_fraction
            copied += 2.0 * grown if grown >= on_chip else 0.0
        return CollectiveCost(width, copied, *taken)

    def _fuses(self, move: Move) -> bool:
        """True if the elementwise consumer of a window reads the window's parts in place."""
        detail, op = move.step.detail, move.op
        uniform = isinstance(detail, Stretch) and detail.uniform
        return uniform and op is not None and self.facts.elementwise[op.id]

    def transfer(self, step: Step, payload: float) -> tuple[float, float, str]:
        """Seconds of a collective, bytes that a device sends, names of the axes."""
        mesh = self.mesh
        shuffle = step.detail if isinstance(step.detail, Shuffle) else None
        key = (step.kind, payload, step.axes, shuffle)
        found = self._transfers.get(key)
        if found is None:
            n = math.prod(mesh.sizes[axis] for axis in step.axes)
            found = self._transfers[key] = (
                permute_seconds([(shuffle.pairs, step.axes, payload)], mesh, self.machine)
                if shuffle
                else collective_seconds(step.kind, payload, step.axes, mesh, self.machine),
                sent_bytes(step.kind, payload, n),
                ",".join(mesh.names[a] for a in step.axes),
            )
        return found

    def of_own(self, own: OwnCollective) -> tuple[float, float, str]:
        """`transfer` of a collective in the user's own `shard_map` region."""
        axes = tuple(a for name in own.axes for a in self.mesh.axes(name))
        return self.transfer(Step(own.kind, axes, -1, -1, "", (), ()), own.nbytes)
