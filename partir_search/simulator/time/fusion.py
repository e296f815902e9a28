"""Fusion of kernels, after which values inside a fused kernel cause no traffic.

An elementwise op or a reduction joins a kernel over the same points, if the kernel makes one of its
operands (the epilogue of a dot, a chain of updates: XLA's output and producer-consumer fusion) or
reads one of its operands (sums over one tensor: multi-output fusion), and if all operands exist
before the kernel or are made in the kernel. The result of a reduction exists when its kernel ends.
Without `XlaTraits.joins_tuple_reductions` a reduction that accumulates a tuple (an argmax) and a
further reduction are in different kernels.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence

from partir_search.ir.core import Op, Region, Value
from partir_search.ir.rule import OpRule
from partir_search.simulator.memory.buffers import Buffers
from partir_search.simulator.memory.dtypes import Dtypes
from partir_search.simulator.memory.materialize import Materialized
from partir_search.simulator.op_kinds import is_pointwise, is_reduction, is_tuple_reduction
from partir_search.simulator.printing import table
from partir_search.simulator.target.traits import XlaTraits
from partir_search.simulator.time.stack_rows import NO_ROWS, StackRows, rows_of


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Fusions:
    """Kernels of one region after fusion, by op position.

    Attributes:
      leader: by position of a kernel, the position of the first kernel in the same fused kernel.
      touched: by position of a kernel, ids of the values read or written by the kernel and by no
        earlier one in the same fused kernel. Repeated ids count repeatedly. A gather of rows has
        its result twice instead of the table, to count as many bytes read as written; a kernel that
        looks up rows itself has the rows instead of the table (`XlaTraits.fuses_lookups`); a row
        that only one kernel reads has nothing (`XlaTraits.fuses_row_reads`). The operand that a
        softmax overwrites (`Dtypes.softmax_in_one_kernel`) is repeated. Rows of stacks that a loop
        copies are repeated (`time/stack_rows.py`). An update in place has the
        update instead of the updated value.
      inner: by position of an op with regions, the fusions of each region.
      copies: by position of a kernel, the number of copies of rows, if any.
    """

    region: Region
    leader: Mapping[int, int]
    touched: Mapping[int, tuple[int, ...]]
    inner: Mapping[int, tuple[Fusions, ...]]
    copies: Mapping[int, int] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        prims = [op.prim for op in self.region.ops]
        groups: dict[int, list[int]] = {}
        for at, leader in self.leader.items():
            groups.setdefault(leader, []).append(at)
        rows = [
            (
                leader,
                " + ".join(prims[at] for at in members),
                [list(self.touched[at]) for at in members],
            )
            for leader, members in groups.items()
        ]
        return table("Fusions", ("position", "ops of one kernel", "touch (value ids)"), rows)


def fuse(
    buffers: Buffers,
    rules: Sequence[OpRule],
    dtypes: Dtypes,
    traits: XlaTraits,
    rows: StackRows = NO_ROWS,
) -> Fusions:
    """Fuses the kernels of a region and of all regions inside.

    Args:
      rules: per op id.
      rows: of stacks that a loop of the region reads and writes.
    """
    region, stored = buffers.region, buffers.materialized
    leader, made, own = _leaders(stored, rules, dtypes, traits)
    # Written values: the region's results, operands of region ops, operands of further kernels.
    written_ids = {x.id for x in region.results if isinstance(x, Value)}
    for at in stored.reads:
        if region.ops[at].regions:
            written_ids.update(v.id for _, v in region.ops[at].inputs())
    for at, leaves in stored.reads.items():
        for v in leaves:
            if v in made and leader[made[v]] != leader[at]:
                written_ids.add(v)
    touched: dict[int, tuple[int, ...]] = {}
    copies: dict[int, int] = {}
    readers = collections.Counter(v for leaves in stored.reads.values() for v in leaves)
    passed = {v for at in stored.reads if region.ops[at].regions for v in stored.reads[at]}
    passed |= {x.id for x in region.results if isinstance(x, Value)}

    def once(v: int) -> bool:
        return readers[v] == 1 and v not in passed

    for at in stored.reads:
        op, read = region.ops[at], own[at]
        if at in stored.rows:
            leaves, some = stored.reads[at], stored.rows[at]
            read = tuple(v for v in read if v in some) + tuple(v for v in some if v not in leaves)
        if traits.fuses_row_reads and rules[op.id].reads_one_row and once(op.results[0].id):
            touched[at] = ()
            continue
        if rules[op.id].is_table_lookup:
            (result,) = op.results
            most = result.type.nbytes
            read = tuple(v if stored.nbytes.get(v, 0) <= most else result.id for v in read)
        if leader[at] == at and is_reduction(rules[op.id]):
            read += tuple(v for v in read if not dtypes.softmax_in_one_kernel.get(v, True))
        written = tuple(r.id for r in op.results if r.id in written_ids)
        if at in buffers.aliases.updates:
            ends = op.operands[0], op.operands[rules[op.id].update_operand]
            whole, update = (x.id for x in ends if isinstance(x, Value))
            read, written = tuple(v for v in read if v != whole), written and (update,)
        copied, copies[at] = rows.copied(at, stored, rules)
        touched[at] = read + written + copied
    _write_rows_into_carries(region, rules, dtypes, leader, touched)

    def of_loop(at: int, number: int, inside: Buffers) -> Fusions:
        rule = rules[region.ops[at].id]
        rows = rows_of(rule, number, inside.region) if traits.copies_scan_rows else NO_ROWS
        return fuse(inside, rules, dtypes, traits, rows)

    inner = {
        at: tuple(of_loop(at, number, inside) for number, inside in enumerate(regions))
        for at, regions in buffers.inner.items()
    }
    return Fusions(region, leader, touched, inner, {k: n for k, n in copies.items() if n})


def _write_rows_into_carries(
    region: Region,
    rules: Sequence[OpRule],
    dtypes: Dtypes,
    leader: dict[int, int],
    touched: dict[int, tuple[int, ...]],
) -> None:
    """Joins scatters into zeros to their additions to carries, in place (`Dtypes.row_sums`)."""
    position = {op.id: at for at, op in enumerate(region.ops)} if dtypes.row_sums else {}
    for scatter, addition in dtypes.row_sums.items():
        at, last = position.get(scatter), position.get(addition)
        if at not in touched or last not in touched:
            continue
        op = region.ops[at]
        zeros, rows = op.operands[0], op.operands[rules[scatter].update_operand]
        skipped = {x.id for x in (zeros, *op.results) if isinstance(x, Value)}
        read = tuple([v for v in touched[at] if v not in skipped])
        touched[at] = (*read, rows.id) if isinstance(rows, Value) else read
        if leader[last] == last and [*leader.values()].count(last) == 1:
            leader[last], touched[last] = leader[at], ()


def _leaders(
    stored: Materialized, rules: Sequence[OpRule], dtypes: Dtypes, traits: XlaTraits
) -> tuple[dict[int, int], dict[int, int], dict[int, tuple[int, ...]]]:
    """Assigns each kernel of a region to the kernel that it joins.

    Returns:
      By position of a kernel, the position of its leader.
      By id of a stored value, the position of its kernel.
      By position of a kernel, ids of the leaves that no earlier kernel of the same leader reads or
        makes.
    """
    region, in_one_kernel = stored.region, dtypes.softmax_in_one_kernel
    made: dict[int, int] = {}
    # By value id, the kernel at whose end the value exists. Scalars exist when their operands do,
    # but for sums.
    ready: dict[int, int] = {}
    leader: dict[int, int] = {}
    points_of: dict[int, int] = {}  # by leader, points of the iteration space
    made_in: dict[int, set[int]] = {}  # by leader, ids of values made
    read_in: dict[int, set[int]] = {}  # by leader, ids of values read
    last_reader: dict[int, int] = {}  # by value id, the last leader open to multi-output fusion
    own: dict[int, tuple[int, ...]] = {}
    reduced: set[int] = set()  # ids of values that exist at the end of their kernel only
    reducing: set[int] = set()  # leaders of kernels with reductions
    reducing_tuples: set[int] = set()  # leaders of kernels with reductions of tuples
    for at, leaves in stored.reads.items():
        op = region.ops[at]
        rule = rules[op.id]
        joined = at
        pointwise = is_pointwise(rule)
        reduction = pointwise and not rule.elementwise
        too_large = reduction and exceeds_accumulator(op, rule, traits)
        of_tuples = reduction and is_tuple_reduction(op, rule)
        if not (op.regions or too_large) and pointwise:
            points = math.prod(rule.sizes)
            candidates = {leader[made[v]] for v in leaves if v in made}
            candidates |= {last_reader[v] for v in leaves if v in last_reader}
            candidates -= {
                leader[made[v]] for v in leaves if not in_one_kernel.get(v, True) and v in made
            }
            if not traits.fuses_dot_epilogues:
                candidates = {c for c in candidates if is_pointwise(rules[region.ops[c].id])}
            if reduction and not traits.joins_tuple_reductions:
                candidates -= reducing if of_tuples else reducing_tuples
            for candidate in sorted(candidates, reverse=True):
                if points_of[candidate] == points and all(
                    ready.get(v, -1) < candidate or (v in made_in[candidate] and v not in reduced)
                    for v in leaves
                ):
                    joined = candidate
                    break
        leader[at] = joined
        if joined == at:
            points_of[at] = _points(op, rule)
            made_in[at], read_in[at] = set(), set()
        own[at] = tuple(v for v in leaves if v not in made_in[joined] | read_in[joined])
        read_in[joined].update(own[at])
        made_in[joined].update(r.id for r in op.results)
        operands_ready = max((ready.get(v, -1) for v in leaves), default=-1)
        for r in op.results:
            made[r.id] = at
            late = r.type.shape or op.regions or reduction
            ready[r.id] = at if late else operands_ready
        if reduction and not ("max" in rule.reducers and any(v in in_one_kernel for v in leaves)):
            reduced.update(r.id for r in op.results)
        if reduction:
            reducing.add(joined)
        if of_tuples:
            reducing_tuples.add(joined)
        if op.regions:
            continue
        if not too_large and pointwise and not rules[region.ops[joined].id].contracts:
            last_reader.update(dict.fromkeys(leaves, joined))
    return leader, made, own


def exceeds_accumulator(op: Op, rule: OpRule, traits: XlaTraits) -> bool:
    """True if a reduction needs a kernel of its own, for the size of its accumulator.

    A reduction over outer dims (the gradient of a bias over the batch) adds to an accumulator of
    all result dims inside of the outermost reduced dim. The limit is
    `XlaTraits.max_reduction_accumulator_bytes`.
    """
    dims, of_result = rule.operands[0], set(rule.results[0])
    if not dims or dims[-1] not in of_result:
        return False
    outermost = next((i for i, f in enumerate(dims) if f not in of_result), len(dims))
    elements = math.prod(rule.sizes[f] for f in dims[outermost:] if f in of_result and f >= 0)
    return elements * op.results[0].type.itemsize > traits.max_reduction_accumulator_bytes


def _points(op: Op, rule: OpRule) -> int:
    """Points of the iteration space of a kernel led by the op; of a dot, those of its epilogue."""
    if rule.contracts or not rule.sizes:
        return math.prod(op.results[0].type.shape) if op.results else 0
    return math.prod(rule.sizes)
