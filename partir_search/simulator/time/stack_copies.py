"""Copies of results of an iteration into the stacks of a scan, kernels of their own.

A scan stacks a result of each iteration, as residuals for the backward scan. On a target with
`XlaTraits.copies_reduced_rows` the kernel that makes a result writes the result into the stack,
unless the kernel is a product fused with a reduction; such results, and arguments of the iteration
that are stacked as they are, are copied. A copy reads and writes the row, at the cost of vector
units for narrow elements (`time/vector_units.py`).

Evidence: two and four layers compiled for v5e. A row bf16[4,512,1024] takes 20.0 to 25.7 us, a row
f32[4,16,512,512] 209 us; a product without a reduction takes as long with a stack as without.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from partir_search.ir.core import Module, Region, Value
from partir_search.ir.rule import OpRule
from partir_search.simulator.arrays import Floats, Ints
from partir_search.simulator.op_kinds import is_reduction
from partir_search.simulator.printing import table
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.time.kernels import Kernels


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class StackCopies:
    """C results that iterations of scans copy into stacks.

    Attributes:
      kernel / value: [C] kernel that makes the result, and id of the result.
      rows: [C] bytes of the loop's stacks over those of the result (`memory/stacks.py`).
      vectors: [C] equivalent bytes of vector units, unpartitioned.
    """

    kernel: Ints
    value: Ints
    rows: Floats
    vectors: Floats

    def __str__(self) -> str:
        columns = (self.kernel, self.value, self.vectors)
        rows = list(zip(*(x.tolist() for x in columns), strict=True))
        return table("StackCopies", ("kernel", "value", "bytes of vector units"), rows)


def stack_copies(
    module: Module, rules: Sequence[OpRule], kernels: Kernels, rows: Floats, machine: Machine
) -> StackCopies:
    """Copies of a module's scans; none on a target without the trait.

    Args:
      rules: per op id.
      rows: [values] bytes of a loop's stacks over those of a row.
    """
    found: list[tuple[int, Value]] = []
    if machine.traits.copies_reduced_rows:
        place, split = kernels.place, reduced_products(rules, kernels)
        for region, results in _stacked(module, rules):
            first = next((place[op.id] for op in region.ops if op.id in place), None)
            made = {r.id: place.get(op.id) for op in region.ops for r in op.results}
            for v in results:
                k = made.get(v.id, first)
                if k is not None and (v.id not in made or k in split):
                    found.append((k, v))
    narrow = [v.type.itemsize < machine.vector_bytes for _, v in found]
    points = [v.type.nbytes / max(v.type.itemsize, 1) for _, v in found]
    return StackCopies(
        kernel=np.array([k for k, _ in found], dtype=np.int64),
        value=np.array([v.id for _, v in found], dtype=np.int64),
        rows=rows[[v.id for _, v in found]],
        vectors=np.array(narrow) * np.array(points, dtype=np.float64) * machine.vector_bytes,
    )


def reduced_products(rules: Sequence[OpRule], kernels: Kernels) -> set[int]:
    """Kernels fused into products that reductions are fused into, by number."""
    leaders, ops = kernels.leader.tolist(), kernels.op.tolist()
    reducing = {leader for op, leader in zip(ops, leaders, strict=True) if is_reduction(rules[op])}
    found = {k for k in reducing if rules[ops[k]].contracts}
    return {k for k, leader in enumerate(leaders) if leader in found}


def _stacked(module: Module, rules: Sequence[OpRule]) -> Iterator[tuple[Region, list[Value]]]:
    """Regions of a module's loops with the values that each iteration adds to stacks."""
    for op in module.ops:
        outputs = rules[op.id].data_flow.outputs if op.regions else ()
        for number, region in enumerate(op.regions):
            stacked = [e for e in outputs if e.region == number and e.stacked_dims]
            made = [region.results[e.region_result] for e in stacked]
            yield region, list(dict.fromkeys(x for x in made if isinstance(x, Value)))
