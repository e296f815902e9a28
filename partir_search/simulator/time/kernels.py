"""Kernels of a module, or of the quotient of a fold, as arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from partir_search.ir.core import Op, Region
from partir_search.ir.rule import OpRule
from partir_search.passes.fold.fold import Folded
from partir_search.passes.fold.linear import KeptOps
from partir_search.simulator.arrays import Floats, Ints
from partir_search.simulator.memory.buffers import Buffers
from partir_search.simulator.op_kinds import op_flops
from partir_search.simulator.printing import table
from partir_search.simulator.time.fusion import Fusions

Closed = Mapping[int, Sequence[tuple[Buffers, Fusions]]]
"""By id of a quotient's op without folded regions, buffers and fusions of each of its regions."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Kernels:
    """All K kernels of a module.

    Attributes:
      prims: [K] primitives, for printing.
      op: [K] op ids.
      times: [K] runs per step: trip counts times fold counts.
      flops: [K] floating-point operations, unpartitioned.
      leader: [K] first kernel of each fused kernel; k for a kernel k that leads or is not fused.
      touched / offsets: ids of values read or written by kernel k:
        touched[offsets[k]:offsets[k + 1]].
      dtype: [K] dtype name of the first operand, which sets the matrix rate.
      copies: [K] copies of rows of stacks, kernels of their own.
    """

    prims: Sequence[str]
    op: Ints
    times: Floats
    flops: Floats
    leader: Ints
    touched: Ints
    offsets: Ints
    dtype: Sequence[str]
    copies: Floats

    def __str__(self) -> str:
        columns = (self.op, self.times, self.flops, self.leader)
        rows = (
            (k, prim, *row)
            for k, (prim, *row) in enumerate(
                zip(self.prims, *(x.tolist() for x in columns), strict=True)
            )
        )
        return table("Kernels", ("kernel", "op", "id", "runs", "flops", "part of"), rows)

    @property
    def place(self) -> dict[int, int]:
        """Number of the first kernel of each op, by op id."""
        return {op: k for k, op in reversed([*enumerate(self.op.tolist())])}

    def values(self, k: int) -> list[int]:
        """Ids of the values that kernel `k` reads or writes."""
        found: list[int] = self.touched[self.offsets[k] : self.offsets[k + 1]].tolist()
        return found

    def sums(self, each: Floats) -> Floats:
        """[K] sums over the values that each kernel touches.

        Args:
          each: a figure for each entry of `touched`.
        """
        sums_before = np.zeros(len(each) + 1)
        np.cumsum(each, out=sums_before[1:])
        found: Floats = sums_before[self.offsets[1:]] - sums_before[self.offsets[:-1]]
        return found


def find_kernels(buffers: Buffers, fusions: Fusions, rules: Sequence[OpRule]) -> Kernels:
    """Collects the kernels of a module without a fold.

    Args:
      rules: per op id.
    """
    found = _Builder()
    found.visit(buffers, fusions, rules, 1.0)
    return found.kernels()


def find_folded_kernels(
    buffers: Buffers, fusions: Fusions, folded: Folded, rules: Sequence[OpRule], closed: Closed
) -> Kernels:
    """Collects the kernels of a quotient; `times` counts the original's kernels behind each.

    Args:
      buffers / fusions: of the original's body.
      rules: per op id of the quotient.
    """
    found = _Builder()
    region, places = folded.module.body, folded.body
    found.visit_folded(buffers, fusions, region, places, folded, rules, closed, 1.0)
    return found.kernels()


class _Builder:
    """Accumulator of kernels, in program order."""

    def __init__(self) -> None:
        self.prims: list[str] = []
        self.op: list[int] = []
        self.times: list[float] = []
        self.flops: list[float] = []
        self.leader: list[int] = []
        self.touched: list[int] = []
        self.offsets: list[int] = [0]
        self.dtype: list[str] = []
        self.copies: list[float] = []

    def kernels(self) -> Kernels:
        """Kernels as arrays."""
        return Kernels(
            prims=self.prims,
            op=np.array(self.op, dtype=np.int64),
            times=np.array(self.times),
            flops=np.array(self.flops),
            leader=np.array(self.leader, dtype=np.int64),
            touched=np.array(self.touched, dtype=np.int64),
            offsets=np.array(self.offsets, dtype=np.int64),
            dtype=self.dtype,
            copies=np.array(self.copies),
        )

    def add(
        self,
        op: Op,
        rule: OpRule,
        values: Sequence[int],
        leader: int,
        trips: float,
        copies: int,
    ) -> None:
        """Adds the kernel of an op that touches `values` and runs `trips` times."""
        self.copies.append(copies)
        self.prims.append(op.prim)
        self.leader.append(leader)
        self.op.append(op.id)
        self.times.append(trips * op.count)
        self.flops.append(op_flops(op, rule))
        self.touched.extend(values)
        self.offsets.append(len(self.touched))
        first = op.operands[0] if op.operands else op.results[0]
        self.dtype.append(str(first.type.dtype))

    def visit(
        self, buffers: Buffers, fusions: Fusions, rules: Sequence[OpRule], trips: float
    ) -> None:
        """Adds the kernels of a region with `trips` runs."""
        place: dict[int, int] = {}
        for at in buffers.materialized.reads:
            op = buffers.region.ops[at]
            place[at] = len(self.op)
            if at in buffers.inner:
                trip_counts = rules[op.id].data_flow.trip_counts
                regions = zip(buffers.inner[at], fusions.inner[at], trip_counts, strict=True)
                for inside, fused, n in regions:
                    self.visit(inside, fused, rules, trips * n)
            else:
                first, copies = place[fusions.leader[at]], fusions.copies.get(at, 0)
                self.add(op, rules[op.id], fusions.touched[at], first, trips, copies)

    def visit_folded(
        self,
        whole: Buffers,
        fusions: Fusions,
        region: Region,
        places: KeptOps,
        folded: Folded,
        rules: Sequence[OpRule],
        closed: Closed,
        trips: float,
    ) -> None:
        """Adds the kernels of a quotient's region.

        Args:
          whole: buffers of the original's region.
        """
        place: dict[int, int] = {}
        for q, at in enumerate(places.positions):
            if at not in whole.materialized.reads:
                continue
            place[q] = len(self.op)
            op = region.ops[q]
            trip_counts = rules[op.id].data_flow.trip_counts
            if at in places.opened:
                left = zip(op.regions, places.opened[at], trip_counts, strict=True)
                pairs = zip(whole.inner[at], fusions.inner[at], strict=True)
                for (inside, fused), (inner, kept, n) in zip(pairs, left, strict=True):
                    self.visit_folded(inside, fused, inner, kept, folded, rules, closed, trips * n)
            elif at in whole.inner:
                for (inside, fused), n in zip(closed[op.id], trip_counts, strict=True):
                    self.visit(inside, fused, rules, trips * n)
            else:
                values = (folded.class_of[v] for v in fusions.touched[at])
                leader = place.get(places.op_of[fusions.leader[at]], len(self.op))
                copies = fusions.copies.get(at, 0)
                self.add(op, rules[op.id], [v for v in values if v >= 0], leader, trips, copies)
