"""Seconds of a compiled program by the compiler's own figures: a judge for the simulator.

XLA:TPU writes `estimated_cycles` beside its kernels; collectives have none and are priced by the
machine's alpha-beta, as the simulator prices them. The schedule is walked in order: synchronous
collectives add up, asynchronous ones run behind what is scheduled until their `done`. Kernels
without cycles (custom gathers and scatters, sorts) are priced by bytes; copies between HBM and VMEM
run behind the rest and are not priced. XLA:GPU writes no cycles at all: every kernel is priced by
the machine's roofline, so that its judge tells only what the schedule hides and what XLA fuses.
Bodies of loops count as often as they run, and of a conditional the longest branch.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable

from partir_search.aot.computations import (
    Computation,
    array_sizes,
    called,
    computations,
    dots,
    instruction,
)
from partir_search.aot.hlo import FUSED_SCATTER, CompiledCollective, axes_of, collectives_of
from partir_search.aot.loops import Loops
from partir_search.ir.mesh import MeshShape
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.time.collectives import collective_seconds

CLOCK_HZ = {"tpu_v5e": 1.5e9, "tpu_v5p": 1.75e9}
"""Peak flops over flops a cycle (197e12 / 131072 and 459e12 / 262144)."""

UNPRICED = ("fusion", "gather", "scatter", "sort", "reduce-window", "select-and-scatter")
KERNELS = (*UNPRICED, "custom-call", "copy", "dot", "convolution", "reduce", "transpose")
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}
UNKNOWN = 1 << 62  # so many cycles stand for "not known"

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_COLLECTIVE = re.compile(
    r"\b(all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(-start|-done)?\("
)


@dataclasses.dataclass(slots=True)
class Judged:
    """Seconds of one step: of kernels, and of all with what collectives leave exposed.

    Attributes:
      unknown: loops of unknown trip count, judged as one run.
    """

    compute: float = 0.0
    total: float = 0.0
    unknown: int = 0

    def work(self, seconds: float) -> None:
        self.compute += seconds
        self.total += seconds


class _Program:
    def __init__(self, text: str, mesh: MeshShape, machine: Machine) -> None:
        self.mesh, self.machine = mesh, machine
        self.hz = CLOCK_HZ[machine.name] if machine.torus else 0.0  # TPUs are on a torus
        parts = computations(text)
        self.loops = Loops(parts)
        self.computations = {part.name: part for part in parts}
        self.entry = next(part.name for part in parts if part.entry)

    def seconds_of(self, found: Iterable[CompiledCollective]) -> float:
        names = self.mesh.names
        total = 0.0
        for c in found:
            axes = [names.index(a) for a in axes_of(c.groups, self.mesh) or names]
            total += collective_seconds(c.kind, c.bytes, axes, self.mesh, self.machine)
        return total

    def roofline(self, moved: float, inside: Iterable[Computation]) -> float:
        """Seconds of a kernel by the roofline of its memory traffic and its matrix products.

        Args:
          moved: bytes read and written.
          inside: computations of the kernel.
        """
        product_seconds = sum(
            flops / self.machine.matmul_flops_per_s(DTYPES[dtype])
            for part in inside
            for flops, dtype in dots(part)
        )
        bytes_seconds = moved / self.machine.attained_hbm_bytes_per_s
        return max(product_seconds, bytes_seconds) + self.machine.kernel_seconds

    def run(self, name: str) -> Judged:
        """Walks one computation's schedule."""
        spent = Judged()
        free = 0.0  # when the links are free again
        flying: collections.deque[tuple[str, float]] = collections.deque()

        def start(key: str, seconds: float) -> None:
            nonlocal free
            free = max(spent.total, free) + seconds
            flying.append((key, free))

        def done(key: str) -> None:
            at = next((i for i, (k, _) in enumerate(flying) if k == key), 0)
            if flying:
                _, end = flying[at]
                del flying[at]
                spent.total = max(spent.total, end)

        nbytes: dict[str, list[int]] = {}  # of an instruction's arrays

        def bytes_of(operand: str) -> int:
            whole, _, index = operand.partition("#")
            arrays = nbytes.get(whole, [])
            return arrays[int(index)] if index.isdecimal() and arrays else sum(arrays)

        part = self.computations[name]
        for line in part.lines:
            match = instruction(line)
            if not match:
                continue
            op, label = match.op, match.name
            nbytes[label] = [n * size for n, size in array_sizes(match.type)]
            found = _CYCLES.search(line)
            cycles = int(found[1]) if found else UNKNOWN
            if cycles < UNKNOWN:
                spent.work(cycles / self.hz)
            inside = [self.computations[x] for x in called(line) if x in self.computations]
            if label.startswith("async-collective-done"):
                done(flying[0][0] if flying else "")
            elif label.startswith("async-collective-start") and inside:
                start(label, self.seconds_of(collectives_of(inside[0])))
            elif op == "fusion" and inside and inside[0].name.startswith(FUSED_SCATTER):
                spent.total += self.seconds_of(collectives_of(inside[0]))
            elif _COLLECTIVE.search(line) and op != "fusion":
                if op.endswith("-done"):
                    done(match.operands[0])
                    continue
                seconds = self.seconds_of(collectives_of(dataclasses.replace(part, lines=(line,))))
                if op.endswith("-start"):
                    start(label, seconds)
                else:
                    spent.total += seconds
            elif op in ("while", "call") and inside:
                inner = self.run(inside[0].name)
                trips = self.loops.trips(line) if op == "while" else 1
                n = 1 if trips is None else trips
                spent.compute += n * inner.compute
                spent.total += n * inner.total
                spent.unknown += inner.unknown + (trips is None)
            elif op == "conditional" and inside:
                branches = [self.run(each.name) for each in inside]
                longest = max(branches, key=lambda each: each.total)
                spent.compute += longest.compute
                spent.total += longest.total
                spent.unknown += sum(each.unknown for each in branches)
            elif op in (UNPRICED if self.hz else KERNELS) and cycles >= UNKNOWN:
                made = sum(nbytes[label])
                read = [bytes_of(x) for x in match.operands]
                if self.hz:  # a gather reads no more of a table than it takes
                    moved = made + sum(min(n, made) for n in read)
                    spent.work(moved / self.machine.attained_hbm_bytes_per_s)
                else:
                    spent.work(self.roofline(made + sum(read), inside))
        return spent


def judge(text: str, mesh: MeshShape, machine: Machine) -> Judged:
    """Seconds of a scheduled XLA:TPU or XLA:GPU program on `mesh`; KeyError for TPUs whose clock is
    not known.
    """
    program = _Program(text, mesh, machine)
    return program.run(program.entry)
