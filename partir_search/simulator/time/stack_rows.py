"""Copies of rows of the stacks that a scan reads and writes (`XlaTraits.copies_scan_rows`).

A scan stacks a result of each iteration, as residuals for the backward scan. XLA:GPU first fills a
stack with zeros. An elementwise kernel or a reduction writes the result into the stack itself, if
no kernel of the iteration reads the result; further results are copied. Elementwise kernels and
reductions read rows of a stack in place, for a product a row is copied first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from partir_search.ir.core import Region, Value
from partir_search.ir.rule import OpRule
from partir_search.simulator.memory.materialize import Materialized


@dataclasses.dataclass(frozen=True, slots=True)
class StackRows:
    """Rows of stacks in the region of a loop.

    Attributes:
      read / written: ids of the region's arguments, and of its results.
    """

    read: frozenset[int]
    written: frozenset[int]

    def copied(
        self, at: int, stored: Materialized, rules: Sequence[OpRule]
    ) -> tuple[tuple[int, ...], int]:
        """Rows that are filled, or copied, for a kernel.

        Args:
          at: position of the kernel.
          stored: values of the region.
          rules: per op id.

        Returns:
          Ids of the rows, repeated for each access.
          Number of copies.
        """
        if not (self.read or self.written):
            return (), 0
        op = stored.region.ops[at]
        product, found, copies = rules[op.id].contracts, list[int](), 0
        for v in stored.reads[at] if product else ():
            if v in self.read and not _read_before(v, at, stored, rules):
                found += (v, v)
                copies += 1
        for r in op.results:
            if r.id in self.written:
                read = product or any(r.id in leaves for leaves in stored.reads.values())
                found += (r.id,) * (3 if read else 1)
                copies += read
        return tuple(found), copies


def _read_before(v: int, at: int, stored: Materialized, rules: Sequence[OpRule]) -> bool:
    """True if an earlier product reads a row."""
    ops = stored.region.ops
    earlier = (k for k, leaves in stored.reads.items() if k < at and v in leaves)
    return any(rules[ops[k].id].contracts for k in earlier)


NO_ROWS = StackRows(frozenset(), frozenset())


def rows_of(rule: OpRule, number: int, region: Region) -> StackRows:
    """Rows of stacks in region `number` of an op.

    Args:
      rule: of the op.
    """
    edges, results = rule.data_flow, region.results
    read = [e.argument for e in edges.inputs if e.region == number and e.stacked_dims]
    written = [e.region_result for e in edges.outputs if e.region == number and e.stacked_dims]
    made = [results[i] for i in written]
    return StackRows(
        frozenset(region.args[i].id for i in read),
        frozenset(x.id for x in made if isinstance(x, Value)),
    )
