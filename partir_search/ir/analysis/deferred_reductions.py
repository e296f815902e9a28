"""Deferred reductions: the ops after which partial results on one mesh axis are finished.

A partial result is finished right after its op, or deferred past its only use if the use is linear
(sums) or monotone (maxima, minima). It is deferred up to an op with a smaller result or with a
second partial operand: gradients are added first and reduced once. If two sums of one parameter
would each be scattered and then added tile by tile (ZeRO with tied weights), the ops in between
lose their loop and their values lose their tile, and the total is scattered.

A finished scalar between partial ones joins their sum, on the first device alone: a global norm
over tiled and replicated leaves is reduced once on each axis, in any order of the leaves.

Sums added to an accumulator that the axis does not tile stay partial over the whole loop, in the
loops over layers inside of it too, and are finished at its result. Of several values added in an
iteration, finished ones join the sum on the first device. If the only reader loops over the axis,
the sums are scattered to the reader instead of reduced and sliced.
"""

from __future__ import annotations

import dataclasses
import heapq
from array import array

from partir_search.ir.analysis.accumulators import Accumulator
from partir_search.ir.analysis.module_analysis import ModuleAnalysis
from partir_search.ir.analysis.reductions import ReductionSite, joining_scalars, passing_group
from partir_search.ir.core import Module, Op
from partir_search.ir.rule import DEFERRABLE, NONE, REPLICATED


@dataclasses.dataclass(frozen=True, slots=True)
class _Deferral:
    """A reduction deferred so far.

    Attributes:
      monoid: "sum", "max" or "min".
      dropped_loops: ops that lose their loop on the axis if the reduction is deferred further.
      untiled: ids of values that lose their tile.
      partial_at_rest: ids of values that become partial at rest.
      joining: ids of ops with a finished scalar that joins the sum.
      earlier: deferrals of the partial operands, deferred together with this one.
      moves_tiles: True if loops or tiles are lost, here or in `earlier`.
    """

    monoid: str
    dropped_loops: tuple[Op, ...] = ()
    untiled: tuple[int, ...] = ()
    partial_at_rest: tuple[int, ...] = ()
    joining: tuple[int, ...] = ()
    earlier: tuple[_Deferral, ...] = ()
    moves_tiles: bool = False


_STARTED = {monoid: _Deferral(monoid) for monoid in DEFERRABLE}


def defer_reductions(
    analysis: ModuleAnalysis, loops: array[int], tiles: array[int]
) -> tuple[dict[int, str], frozenset[int]]:
    """Defers the reductions of one axis.

    Args:
      analysis: facts of the module and its rules.
      loops: [ops] factors; loops that a deferred reduction replaces are set to NONE.
      tiles: [values] dims; likewise.

    Returns:
      monoid of each value partial at rest, by value id; ids of ops with finished scalars that join
      partial sums.
    """
    consumer = analysis.consumer
    deferrals: dict[int, _Deferral] = {}  # by id of the partial value
    partial_at_rest: dict[int, str] = {}
    joining: set[int] = set()
    finals: set[int] = set()  # ids of results of accumulators
    queue = [  # a heap of op ids: program order visits the operands of an op before the op
        op for op, deferrable in analysis.reducing if loops[op] >= 0 and deferrable[loops[op]]
    ]
    waiting = set(queue)

    def visit(op: int) -> None:
        if op >= 0 and op not in waiting:
            waiting.add(op)
            heapq.heappush(queue, op)

    def record(results: tuple[int, ...], deferral: _Deferral) -> None:
        for r in results:
            deferrals[r] = deferral
            out = analysis.leaving.get(r)
            if out is not None and tiles[r] < 0 and tiles[out] < 0:
                outside = (*deferral.partial_at_rest, r)
                record((out,), dataclasses.replace(deferral, partial_at_rest=outside))
            visit(consumer[r])

    def is_partial(v: int) -> bool:
        return v in deferrals and (tiles[v] != REPLICATED or v in finals)

    def rest(deferral: _Deferral) -> None:
        """Leaves the values of a deferral partial."""
        todo = [deferral]
        while todo:
            each = todo.pop()
            for op in each.dropped_loops:
                loops[op.id] = NONE
            for v in each.untiled:
                tiles[v] = NONE
            partial_at_rest.update((v, each.monoid) for v in each.partial_at_rest)
            joining.update(each.joining)
            todo += each.earlier

    def accumulate(kept: Accumulator) -> None:
        """Leaves the sums of an accumulator partial, if all values added can be."""
        partial = {op: v for op, v in kept.added.items() if is_partial(v)}
        sums = all(deferrals[v].monoid == "sum" for v in partial.values())
        finished = [v for v in kept.added.values() if v not in partial.values()]
        whole = all(tiles[v] < 0 for v in (*kept.arguments, *finished))
        begun = kept.start is None or kept.start in deferrals
        if not (partial and sums and whole and begun) or any(loops[op] >= 0 for op in kept.added):
            return
        for v in partial.values():
            rest(deferrals[v])
        held = (*kept.arguments, *partial.values(), *kept.totals)
        partial_at_rest.update(dict.fromkeys(held, "sum"))
        joining.update(op for op in kept.added if op not in partial)
        if kept.start is not None:
            rest(deferrals[kept.start])
            partial_at_rest[kept.start] = "sum"
        finals.update(kept.finals)
        record(kept.finals, _STARTED["sum"])

    while queue:
        site = analysis.site(heapq.heappop(queue))
        f = loops[site.op.id]
        if f >= 0 and site.reduces and site.rule.reducers[f] in DEFERRABLE:
            record(site.results, _STARTED[site.rule.reducers[f]])
            continue
        kept = analysis.accumulators.get(site.op.id)
        if kept is not None:
            if site.op.id == max(kept.added):
                accumulate(kept)
            else:
                visit(max(kept.added))
            continue
        partial = tuple([v for v in site.single if is_partial(v)])
        if not partial:
            continue
        monoid = deferrals[partial[0]].monoid
        if len(partial) > 1 and any(deferrals[v].monoid != monoid for v in partial):
            continue
        growth = _growth(analysis, site, monoid, partial)
        widens = site.op.id in analysis.widening
        if growth is None or (growth > 0 and not widens):
            continue
        earlier = tuple([deferrals[v] for v in partial])
        untiled = tuple([v for v in partial if tiles[v] >= 0])
        deferral = _Deferral(
            monoid,
            (site.op,) if f >= 0 else (),
            untiled,
            partial,
            (site.op.id,) if (site.op.id, monoid, partial) in analysis.joining else (),
            earlier,
            f >= 0 or bool(untiled) or any(d.moves_tiles for d in earlier),
        )
        if len(partial) == 1 and (widens or deferral.moves_tiles or not growth):
            record(
                site.results, deferral
            )  # saves bytes only with a second partial operand further on
            continue
        rest(deferral)
        record(site.results, _STARTED[monoid])
    for v in finals:
        if v not in partial_at_rest and consumer[v] >= 0:
            reader = analysis.site(consumer[v])
            place = [x.id for _, x in reader.op.inputs()].index(v)
            dims = reader.rule.operands
            if loops[consumer[v]] >= 0 and loops[consumer[v]] in dims[place]:
                partial_at_rest[v] = deferrals[v].monoid
    return partial_at_rest, frozenset(joining)


def _growth(
    analysis: ModuleAnalysis, site: ReductionSite, monoid: str, partial: tuple[int, ...]
) -> int | None:
    """Bytes added by reducing the op's results instead of its partial operands.

    None if the partial operands may not pass the op.
    """
    key = site.op.id, monoid, partial
    if key not in analysis.growth:
        values, zeros = frozenset(partial), analysis.zeros
        passes = passing_group(site.op, site.rule, monoid, values, zeros)
        if not passes and (scalars := joining_scalars(site.op, values)):
            passes = passing_group(site.op, site.rule, monoid, values, zeros | scalars)
            if passes:
                analysis.joining.add(key)
        analysis.growth[key] = _added(site.op, partial) if passes else None
    return analysis.growth[key]


def _added(op: Op, partial: tuple[int, ...]) -> int:
    before = sum(v.type.nbytes for _, v in op.inputs() if v.id in partial)
    return sum(r.type.nbytes for r in op.results) - before


def same_growth(analysis: ModuleAnalysis, module: Module) -> bool:
    """True if reductions end after the same ops in `module` as in the analysed program.

    Args:
      analysis: facts of a program, with the growths asked for so far.
      module: a program that differs in extents alone.
    """
    asked = ((op, partial, n) for (op, _, partial), n in analysis.growth.items() if n is not None)
    return all(_sign(_added(module.ops[op], partial)) == _sign(n) for op, partial, n in asked)


def _sign(n: int) -> int:
    return (n > 0) - (n < 0)
