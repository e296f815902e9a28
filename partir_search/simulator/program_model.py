"""Facts of a module on a machine that hold under every partition, and prices of moves."""

from __future__ import annotations

import dataclasses
import functools
import math
from array import array

import numpy as np

from partir_search.ir.core import Module, Value
from partir_search.ir.manual import OwnCollective
from partir_search.ir.mesh import MeshShape
from partir_search.ir.rule import NONE, OpRule
from partir_search.lowering.halo import Stretch
from partir_search.lowering.local_ir import Move
from partir_search.lowering.reshard import COLLECTIVES, Shuffle, Step
from partir_search.passes.fold.fold import Folded
from partir_search.simulator.memory.buffers import Floats, Ints, kernels
from partir_search.simulator.memory.dtypes import Usage, storage_of, stored_widths, usage_of
from partir_search.simulator.memory.liveness import Curve
from partir_search.simulator.memory.parameter_casts import Casts
from partir_search.simulator.memory.regions import Inside
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.time.collectives import collective_seconds, sent_bytes
from partir_search.simulator.time.permutes import permute_seconds
from partir_search.simulator.time.split_kernels import Cuts
from partir_search.simulator.time.vector_units import Passes


@dataclasses.dataclass(frozen=True, slots=True)
class Price:
    """Seconds and bytes of a move.

    Attributes:
      width: bytes that the move carries and leaves in a copy, as a multiple of the program's.
      copied: bytes moved because a copy is larger than its source: read, and written unless that
        is a collective's part.
      seconds / sent / axes: of a collective, the bytes that a device sends, and the axes' names.
    """

    width: float
    copied: float
    seconds: float
    sent: float
    axes: str


class ProgramModel:
    """The static half: traffic, kernels and memory curve of one module on one machine."""

    def __init__(
        self,
        module: Module,
        rules: list[OpRule],
        machine: Machine,
        *,
        folded: Folded | None = None,
        original_rules: list[OpRule] | None = None,
        usage: Usage | None = None,
    ) -> None:
        """A model of `module`, or of its original by way of the quotient.

        Args:
          folded, original_rules: what `module` is the quotient of.
          usage: of the original, if it is known already.
        """
        self.module, self.machine = module, machine
        self.contracts = [rule.contracts for rule in rules]
        self.elementwise = [rule.elementwise for rule in rules]
        regions = ((op.id, rules[op.id].manual) for op in module.ops)
        self.manual = {i: manual.collectives for i, manual in regions if manual}
        if folded is None:
            usage = usage or usage_of(module, rules, machine)
            self.kernels = kernels(usage.traffic, rules)
            class_of: Ints = np.arange(len(module.values))
        else:
            assert original_rules is not None
            usage = usage or usage_of(folded.original, original_rules, machine)
            widths = stored_widths(module, rules, machine.traits) if usage.widths else None
            storage = storage_of(module, rules, machine, widths)
            self.kernels = kernels(usage.traffic, original_rules, folded, rules, storage)
            class_of = np.array(folded.class_of)
        self._class_of, self.traffic = class_of, usage.traffic
        self.nbytes = np.array([v.type.nbytes for v in module.values], dtype=np.float64)
        self.width_of = np.ones(len(module.values))
        self.for_products = np.zeros(len(module.values), dtype=np.bool_)
        if usage.widths:
            known = class_of >= 0
            self.width_of[class_of[known]] = usage.widths.width[known]
            self.for_products[class_of[known]] = usage.widths.for_products[known]
        awaited = np.ones(len(class_of), dtype=np.bool_)
        awaited[list(usage.unawaited)] = False
        late = np.setdiff1d(class_of[~awaited], class_of[awaited])
        self.unawaited = frozenset(late.tolist())
        self.unawaited_runs = self._unawaited_runs()
        self.curve = Curve(self.traffic, machine, folded)
        self.casts = Casts(usage.casts, self.traffic.value, class_of, len(module.values))
        self.inside = Inside(module, machine)
        if folded is None:
            self.inside.add(self.traffic)
        else:
            at = module.body, folded, folded.body
            self.inside.add_folded(self.traffic, *at, rules, storage)
            self.inside.find_sums(rules)
        self.rates = np.array([machine.matmul_flops_per_s(d) for d in self.kernels.dtype])
        self.passes = Passes(module, rules, self.kernels, self.width_of, machine)
        self.cuts = Cuts(module, rules, self.kernels, self.passes)
        counts = np.zeros(len(module.values))
        if folded is None:
            for v in module.body.args:
                counts[v.id] = 1
        else:
            for v in folded.original.body.args:
                counts[folded.class_of[v.id]] += 1
        for v_id in module.constants:
            counts[v_id] += 1
        self.argument_counts = counts
        self._mesh: MeshShape | None = None  # that the transfers below are on
        self._transfers: dict[tuple[object, ...], tuple[float, float, str]] = {}
        self._prices: dict[Move, Price] = {}

    def _unawaited_runs(self) -> Floats:
        """[ops] runs in a step of each product that nothing waits for, where its kernel's seconds
        stand; 0 for all other ops.
        """
        found, k = np.zeros(len(self.module.ops)), self.kernels
        if not self.machine.traits.defers_weight_gradients:
            return found
        for op_id, leader in zip(k.op.tolist(), k.op[k.leader].tolist(), strict=True):
            op = self.module.ops[op_id]
            if self.contracts[op_id] and all(r.id in self.unawaited for r in op.results):
                found[leader] = op.count
        return found

    @functools.cached_property
    def last_use(self) -> array[int]:
        """[values] position of the body's op that uses each last, or NONE."""
        found = array("i", [NONE]) * len(self.module.values)
        for at, op in enumerate(self.module.body.ops):
            for _, v in op.inputs():
                found[v.id] = at
        return found

    @functools.cached_property
    def in_place(self) -> frozenset[int]:
        """Ids of results that land in a donated argument's buffer."""
        results = [
            self.module.body.results[r] for a, r in self.module.ties if a in self.module.donated
        ]
        return frozenset(x.id for x in results if isinstance(x, Value))

    @functools.cached_property
    def made(self) -> array[int]:
        """[values] the op that makes each, or NONE: arguments and constants, of regions too."""
        found = array("i", [NONE]) * len(self.module.values)
        for op in self.module.ops:
            for r in op.results:
                found[r.id] = op.id
        return found

    @functools.cached_property
    def stored(self) -> bytearray:
        """[values] whether each is stored somewhere: others are made where they are used."""
        found = np.zeros(len(self.module.values), dtype=np.bool_)
        known = self._class_of[self.traffic.value]
        found[known[known >= 0]] = True
        for values in self.inside.stored:
            found[values] = True
        return bytearray(found)

    def width(self, move: Move) -> float:
        """Bytes that a move carries and leaves in a copy, as a multiple of the program's."""
        traits = self.machine.traits
        if move.step.monoid or move.rests or not traits.narrows_dot_operands:
            return 1.0
        v = move.source.value
        product = move.op is not None and self.contracts[move.op.id]
        if self.for_products[v.id]:
            return traits.dot_operand_width
        return self.product_width(v) if product else 1.0

    def product_width(self, v: Value) -> float:
        """Bytes that a product reads of a value, as a multiple of the program's."""
        return self.machine.traits.dot_operand_width if v.type.itemsize == 4 else 1.0

    def price(self, move: Move, mesh: MeshShape) -> Price:
        """Price of a move."""
        if mesh is not self._mesh:
            self._mesh, self._transfers, self._prices = mesh, {}, {}
        found = self._prices.get(move) if move.shared else None
        if found is None:
            width, step, grown = self.width(move), move.step, move.target.nbytes
            traits = self.machine.traits
            copied, taken = 0.0, (0.0, 0.0, "")
            if grown > move.source.nbytes or step.kind == "window":
                copied = (1.0 if step.kind in COLLECTIVES else 2.0) * grown * width
                if move.beside:  # products of what was fetched, each in a kernel of its own
                    bandwidth = self.machine.attained_hbm_bytes_per_s
                    copied = 2.0 * (grown - move.source.nbytes) * width
                    copied += len(move.blocks) * self.machine.kernel_seconds * bandwidth
                elif step.kind == "window" and self.fuses(move):
                    copied = 0.0
            if step.kind in COLLECTIVES:
                taken = self.transfer(step, move.payload_bytes * width, mesh)
                factor = traits.collective_copy_factors.get(step.kind, 0.0)
                copied += factor * move.payload_bytes * width
            if traits.copies_gather_into_donated and self.lands(move):
                # From the memory on the chip the value is copied while kernels run.
                on_chip = self.machine.vmem_bytes * traits.vmem_resident_fraction
                copied += 2.0 * grown if grown >= on_chip else 0.0
            found = Price(width, copied, *taken)
            if move.shared:
                self._prices[move] = found
        return found

    def fuses(self, move: Move) -> bool:
        """True if a stretch is put together where it is read, by a kernel that walks it anyway."""
        detail, op = move.step.detail, move.op
        uniform = isinstance(detail, Stretch) and detail.uniform
        return uniform and op is not None and self.elementwise[op.id]

    def lands(self, move: Move) -> bool:
        """True if a move gathers a value into a donated argument's buffer."""
        ends = move.step.kind == "all_gather" and (move.rests or move.op is None)
        return ends and move.source.value.id in self.in_place

    def transfer(self, step: Step, payload: float, mesh: MeshShape) -> tuple[float, float, str]:
        """Seconds of a collective, bytes that a device sends, and the axes' names."""
        if mesh is not self._mesh:
            self._mesh, self._transfers, self._prices = mesh, {}, {}
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

    def own_seconds(self, own: OwnCollective, mesh: MeshShape) -> tuple[float, float, str]:
        """Seconds of a collective of the user's, bytes that a device sends, the axes' names."""
        axes = tuple(a for name in own.axes for a in mesh.axes(name))
        step = Step(own.kind, axes, -1, -1, "", (), ())
        return self.transfer(step, own.nbytes, mesh)
