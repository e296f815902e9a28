"""Accumulators: carries of a loop over microbatches with zeros at first, and sums later.

A partial sum of devices may stay unfinished in an accumulator over the whole loop, to be
finished once, after the loop, and over a further loop that goes on with the sum. An iteration may
add several values, one after the other. An inner loop over layers may carry the accumulator on, and
add to it in each layer. A sum may also leave an inner loop unfinished, as a row for each layer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence, Set

from partir_search.ir.analysis.def_use import DefUse
from partir_search.ir.analysis.reductions import is_zero
from partir_search.ir.core import Module, Op, Value
from partir_search.ir.data_flow import CarryEdge, DataFlowEdges
from partir_search.ir.rule import OpRule


@dataclasses.dataclass(frozen=True, slots=True)
class Accumulator:
    """One carry.

    Attributes:
      arguments: ids of arguments of the region, and of inner loops' regions: the sum before.
      added: id of the value added, by id of the adding op, in order.
      totals: ids of the sums after each addition, and of results of the regions: the new sum.
      finals: ids of the loop's results: the sum of all.
      start: id of the sum of an earlier loop that the loop begins with; None for zeros.
    """

    arguments: tuple[int, ...]
    added: Mapping[int, int]
    totals: tuple[int, ...]
    finals: tuple[int, ...]
    start: int | None = None


def find_accumulators(
    module: Module, rules: Sequence[OpRule], uses: DefUse, zeros: frozenset[int]
) -> Mapping[int, Accumulator]:
    """Accumulators by id of each adding op.

    Args:
      rules: per op id.
      zeros: ids of values known to be zero.
    """
    found: dict[int, Accumulator] = {}
    sums: set[int] = set()
    for op in module.ops:
        if op.regions and rules[op.id].data_flow.accumulates:
            for accumulator in _in_loop(op, rules, uses, zeros, sums):
                found |= dict.fromkeys(accumulator.added, accumulator)
                sums.update(accumulator.finals)
    return found


def _in_loop(
    op: Op,
    rules: Sequence[OpRule],
    uses: DefUse,
    zeros: frozenset[int],
    sums: Set[int],
) -> Iterator[Accumulator]:
    edges = rules[op.id].data_flow
    starts = {(e.region, e.argument): op.operands[e.operand] for e in edges.inputs}
    for edge in edges.carries:
        way = _way(op, edge, rules, uses)
        if way is None:
            continue
        start = starts[edge.next_region, edge.argument]
        follows = isinstance(start, Value) and start.id in sums and uses.counts[start.id] == 1
        if follows or is_zero(start, zeros):
            argument = op.regions[edge.next_region].args[edge.argument]
            finals = [
                op.results[e.op_result].id
                for e in edges.finals
                if op.regions[e.region].args[e.argument] is argument
            ]
            begun = start.id if follows and isinstance(start, Value) else None
            yield dataclasses.replace(way, finals=tuple(finals), start=begun)


def _way(op: Op, edge: CarryEdge, rules: Sequence[OpRule], uses: DefUse) -> Accumulator | None:
    """The carry of a loop with values added by the loop, or by loops inside.

    None if a further op reads a sum, or a value added.
    """
    argument = op.regions[edge.next_region].args[edge.argument]
    total = op.regions[edge.region].results[edge.region_result]
    arguments, added, totals = [argument.id], dict[int, int](), list[int]()
    x = argument
    while x is not total:
        if uses.counts[x.id] != 1 or len(uses.users[x.id]) != 1:
            return None
        (reader,) = uses.users[x.id]
        if reader.regions:
            inner = _carried(reader, rules[reader.id].data_flow, x)
            found = None if inner is None else _way(reader, inner[0], rules, uses)
            if inner is None or found is None:
                return None
            arguments += found.arguments
            added |= found.added
            totals += found.totals
            x = inner[1]
        else:
            others = _added_to(x, reader, rules[reader.id])
            if len(others) != 1 or uses.counts[others[0].id] != 1:
                return None
            added[reader.id] = others[0].id
            (x,) = reader.results
        totals.append(x.id)
    if uses.counts[total.id] != 1 or not added:
        return None
    return Accumulator(tuple(arguments), added, tuple(totals), ())


def _carried(op: Op, edges: DataFlowEdges, first: Value) -> tuple[CarryEdge, Value] | None:
    """Carry of a loop with operand `first`, and the result of the loop for the carry."""
    starts = {(e.region, e.argument): op.operands[e.operand] for e in edges.inputs}
    finals = {(e.region, e.argument): op.results[e.op_result] for e in edges.finals}
    for edge in edges.carries:
        place = edge.next_region, edge.argument
        if starts.get(place) is first and place in finals:
            return edge, finals[place]
    return None


def _added_to(argument: Value, add: Op, rule: OpRule) -> list[Value]:
    """Other summand of a linear op of two summands; [] unless `argument` is one of them.

    The op may add to all elements of the argument, or to some rows (a scatter).
    """
    for group in rule.linear:
        summed = [add.operands[i] for i in group]
        if len(group) == 2 and argument in summed:
            return [x for x in summed if isinstance(x, Value) and x is not argument]
    return []


@dataclasses.dataclass(frozen=True, slots=True)
class AddedPaths:
    """Ways of partial sums to accumulators.

    Attributes:
      widening: ids of linear ops on one value on the way; partial sums may pass and grow, as from
        bf16 to f32.
      leaving: id of an inner loop's result by id of its region's result, for loops over layers with
        a row added for each layer.
    """

    widening: frozenset[int]
    leaving: Mapping[int, int]


def added_paths(
    rules: Sequence[OpRule], uses: DefUse, accumulators: Mapping[int, Accumulator]
) -> AddedPaths:
    """Ways to the values added to accumulators, through values used once."""
    widening: set[int] = set()
    leaving: dict[int, int] = {}
    todo = list({v for a in accumulators.values() for v in a.added.values()})
    while todo:
        value = todo.pop()
        maker = uses.makers[value]
        if maker is None or uses.counts[value] != 1:
            continue
        inputs = maker.inputs()
        if not maker.regions:
            if len(inputs) == 1 and rules[maker.id].linear and _no_more(inputs[0][1], maker):
                widening.add(maker.id)
                todo.append(inputs[0][1].id)
            continue
        outputs = rules[maker.id].data_flow.outputs
        ends = [e for e in outputs if maker.results[e.op_result].id == value]
        if len(ends) == 1:
            row = maker.regions[ends[0].region].results[ends[0].region_result]
            if isinstance(row, Value) and uses.counts[row.id] == 1:
                leaving[row.id] = value
                todo.append(row.id)
    return AddedPaths(frozenset(widening), leaving)


def _no_more(operand: Value, op: Op) -> bool:
    """True if an op has no more elements in its result than in an operand."""
    return math.prod(op.results[0].type.shape) <= math.prod(operand.type.shape)
