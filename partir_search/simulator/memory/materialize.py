"""Materialized values: values in memory under a compiler that fuses elementwise ops.

The consumers of an elementwise value recompute the value. Stored are arguments, inputs and results
of regions, and results of all ops but elementwise ones. A *kernel* is an op with stored results.
Its *leaves* are the stored values from which its operands are computed. An elementwise value with
several consumers is stored too, if keeping its leaves alive would take more memory than the value
(the residual stream): `XlaTraits.materialize_ratio`. A value that many dots read is stored if that
moves fewer bytes (`XlaTraits.stores_shared_operands`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from partir_search.ir.analysis.def_use import DefUse
from partir_search.ir.core import Op, Operand, Region, Value
from partir_search.ir.role import Role
from partir_search.ir.rule import OpRule
from partir_search.simulator.memory.consumers import Consumers
from partir_search.simulator.memory.dtypes import Dtypes
from partir_search.simulator.op_kinds import is_reduction
from partir_search.simulator.printing import table
from partir_search.simulator.target.traits import XlaTraits

Sources = Mapping[int, tuple[int, ...]]
"""By value id, ids of the stored values from which the value is computed."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Materialized:
    """Stored values of one region, and the kernels by which each value is made and read.

    Attributes:
      reads: by position of a kernel, ids of the leaves.
      rows: by position of a kernel that looks up rows itself, ids of `reads` with the rows in place
        of a table that is larger than these.
      made: by id of a stored value, the position of the kernel.
      nbytes: by id of a stored value or argument, unpartitioned bytes.
      last: by id of a stored value, the position of the last kernel to read the value.
      last_forward: `last` among kernels of the forward pass.
    """

    region: Region
    reads: Mapping[int, tuple[int, ...]]
    rows: Mapping[int, tuple[int, ...]]
    made: Mapping[int, int]
    nbytes: Mapping[int, int]
    last: Mapping[int, int]
    last_forward: Mapping[int, int]

    def __str__(self) -> str:
        ops = self.region.ops
        rows = [
            (at, ops[at].prim, ", ".join(r.name for r in ops[at].results), list(self.reads[at]))
            for at in self.reads
        ]
        return table("Materialized", ("position", "kernel", "stores", "reads (value ids)"), rows)


def materialize(
    region: Region,
    rules: Sequence[OpRule],
    uses: DefUse,
    dtypes: Dtypes,
    traits: XlaTraits,
    outside: Sources = MappingProxyType({}),
) -> Materialized:
    """Decides for each op of a region whether the op stores its results.

    Args:
      rules: per op id.
      uses: def-use analysis of the region's module.
      outside: sources of captured values.
    """
    sources: dict[int, tuple[int, ...]] = dict(outside)
    nbytes: dict[int, int] = {}
    for arg in region.args:
        sources[arg.id] = (arg.id,)
        nbytes[arg.id] = arg.type.nbytes
    forced = {x.id for x in region.results if isinstance(x, Value)} | dtypes.materialized
    for op in region.ops:
        if op.regions:
            forced.update(v.id for _, v in op.inputs())
        if traits.materializes_scatter_updates and rules[op.id].role is Role.SCATTER:
            forced.update(
                x.id
                for x in op.operands[-1:]
                if isinstance(x, Value) and op.id not in dtypes.one_hot
            )
    fetched: dict[int, dict[int, int]] = {}  # by id of a recomputed value, but for slices
    looked_up: dict[int, tuple[int, ...]] = {}  # by value id: `sources` with rows
    reads: dict[int, tuple[int, ...]] = {}
    rows: dict[int, tuple[int, ...]] = {}
    made: dict[int, int] = {}
    last: dict[int, int] = {}
    last_forward: dict[int, int] = {}
    users = uses.users
    consumers = Consumers(region, rules, uses, forced, dtypes.one_hot)

    def sources_of(operand: Operand) -> tuple[int, ...]:
        return sources.get(operand.id, (operand.id,)) if isinstance(operand, Value) else ()

    def rows_of(operands: Sequence[Operand]) -> tuple[int, ...]:
        found = [
            looked_up.get(x.id, sources_of(x)) if isinstance(x, Value) else () for x in operands
        ]
        return tuple(dict.fromkeys(s for each in found for s in each))

    def looks_up_rows(op: Op) -> bool:
        """True if an op reads rows that are fewer bytes than their table."""
        return rules[op.id].is_table_lookup and (
            op.operands[0].type.nbytes > op.results[0].type.nbytes
        )

    def recomputed_in_dots(result: Value, leaves: tuple[int, ...]) -> bool:
        """True if dots alone read a value, computing the value in each dot moves fewer bytes, and
        no kernel of the leaves can compute the value, as the value depends on a reduction.
        """
        if not all(rules[u.id].contracts for u in users[result.id]):
            return False
        after_reduction = any(
            is_reduction(rules[region.ops[made[s]].id])
            and not set(leaves).isdisjoint(reads[made[s]])
            for s in leaves
            if s in made
        )
        leaf_bytes = sum(nbytes.get(s, 0) * dtypes.changed.get(s, 1.0) for s in leaves)
        n = len(users[result.id])
        # Read the leaves in each dot, or once to write the value, which each dot then reads.
        fewer = n * leaf_bytes < leaf_bytes + (n + 1) * result.type.nbytes
        return after_reduction and fewer

    def fusible(op: Op) -> bool:
        """True if consumers may compute the results of an op themselves."""
        rule = rules[op.id]
        lookup = traits.fuses_lookups and rule.is_table_lookup
        return rule.elementwise or op.id in dtypes.one_hot or lookup

    def read_in_place(op: Op) -> bool:
        """True for a slice, and for a view of one: each consumer reads the stretch in the source,
        however many there are. Dots read views that the memory pads from copies, but for a view
        of a padded view.
        """
        if not traits.reads_views_in_place:
            return bool(rules[op.id].reads)
        if any(r.id in dtypes.padded_operands for r in op.results):
            together = all(v.id in dtypes.padded_operands for _, v in op.inputs())
            return bool(rules[op.id].reads) or (rules[op.id].moves and together)
        while not rules[op.id].reads and rules[op.id].moves and op.inputs():
            maker = uses.makers[op.inputs()[0][1].id]
            if maker is None or maker.results[0].id in made:
                break
            op = maker
        return bool(rules[op.id].reads)

    def fetched_by(op: Op) -> dict[int, int]:
        """Bytes of the stored values and slices that a kernel of an op reads, by id."""
        found: dict[int, int] = {}
        for _, v in op.inputs():
            found |= fetched.get(v.id, {v.id: v.type.nbytes})
        return found

    def read_by_dots(result: Value) -> int:
        """Number of dots that read a value, directly or moved; 0 with any further reader."""
        n = 0
        for u in users[result.id]:
            rule = rules[u.id]
            moved = rule.moves and rule.elementwise and len(u.results) == 1
            found = read_by_dots(u.results[0]) if moved else int(rule.role is Role.DOT)
            if not found:
                return 0
            n += found
        return n

    def shared(op: Op, result: Value) -> bool:
        """True if three dots or more read a value, no further ops do, and to store the value moves
        fewer bytes than to read the operands in each dot.
        """
        if rules[op.id].moves or not traits.stores_shared_operands:
            return False
        if (n := read_by_dots(result)) < 3:
            return False
        once = sum(fetched_by(op).values())
        return n * once > once + (n + 1) * result.type.nbytes

    def large(leaves: tuple[int, ...], result: Value) -> int:
        """Number of leaves that count as inputs of a fused chain."""
        least = traits.fused_input_fraction * result.type.nbytes
        return sum(nbytes.get(s, 0) >= least for s in leaves)

    def recomputed(op: Op, leaves: tuple[int, ...]) -> bool:
        """True if the consumers of an elementwise op's results compute the results themselves."""
        once = traits.stores_expensive_elementwise and rules[op.id].expensive
        if once and len(users[op.results[0].id]) > 1:
            return False
        if len(op.results) > 1:
            return not any(r.id in forced for r in op.results)
        (result,) = op.results
        if traits.recomputes_comparisons and result.type.dtype == np.bool_:
            return result.id not in forced
        return not (
            result.id in forced
            or shared(op, result)
            or large(leaves, result) > traits.max_fused_inputs
            or (
                len(users[result.id]) > 1
                and sum(nbytes.get(s, 0) for s in leaves)
                > traits.materialize_ratio * result.type.nbytes
                > 0
                and not read_in_place(op)
                and sum(nbytes.get(s, 0) for s in consumers.sole(op, leaves, made))
                >= result.type.nbytes
                and not (traits.recomputes_dot_operands and recomputed_in_dots(result, leaves))
            )
        )

    for at, op in enumerate(region.ops):
        if rules[op.id].accepts_any_layout:  # reads types and shardings, no data
            continue
        leaves = tuple(dict.fromkeys(s for x in op.operands for s in sources_of(x)))
        if fusible(op) and not op.regions and recomputed(op, leaves):
            for r in op.results:
                sources[r.id] = leaves
                if not rules[op.id].reads:
                    fetched[r.id] = fetched_by(op)
            if looks_up_rows(op):
                (result,) = op.results
                looked_up[result.id] = (result.id, *rows_of(op.operands[1:]))
            elif looked_up:
                looked_up.update((r.id, rows_of(op.operands)) for r in op.results)
            continue
        reads[at] = leaves
        if looked_up and (some := rows_of(op.operands)) != leaves:
            rows[at] = some
        for s in leaves:
            last[s] = at
            if not op.backward:
                last_forward[s] = at
        for r in op.results:
            sources[r.id] = (r.id,)
            nbytes[r.id] = r.type.nbytes
            made[r.id] = last[r.id] = last_forward[r.id] = at
    return Materialized(region, reads, rows, made, nbytes, last, last_forward)
