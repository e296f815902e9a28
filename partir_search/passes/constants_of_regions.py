"""Operands of ops with regions, equal in all iterations: their values outside; unread ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.ir.data_flow import DataFlowEdges
from partir_search.ir.rule import OpRule
from partir_search.passes.rewriter import Rewriter
from partir_search.rules.region_parts import may_lose_parts, without_operands, without_results

Places = list[tuple[int, int]]  # (region, argument) pairs


def values_outside(module: Module, rule: Callable[[Op], OpRule]) -> Mapping[int, Value]:
    """By id, the equal value one region further out.

    Holds arguments of regions equal in all iterations, and results of ops with regions returning
    an equal argument (of an optimization barrier).
    """
    found: dict[int, Value] = {}
    for op in module.ops:
        if not op.regions:
            continue
        edges = rule(op).data_flow
        outer: dict[Operand, Value] = {}
        for operand, places in _constants(edges).items():
            x = op.operands[operand]
            if isinstance(x, Value):
                outer.update({op.regions[r].args[a]: x for r, a in places})
        found.update({arg.id: x for arg, x in outer.items() if isinstance(arg, Value)})
        returned: dict[int, list[Operand]] = {}
        for region, place, result, stacked in edges.outputs:
            if not stacked:
                returned.setdefault(result, []).append(op.regions[region].results[place])
        for result, made in returned.items():
            sources = {outer.get(x) if isinstance(x, Value) else None for x in made}
            source = sources.pop()
            if source is not None and not sources:
                found[op.results[result].id] = source
    return found


def without_unread(module: Module, rule: Callable[[Op], OpRule]) -> Module:
    """Module without operands of loops that no iteration reads, and without their makers."""
    rewriter = _WithoutUnread(module, rule)
    new = rewriter.run()
    return new if rewriter.dropped else module


class _WithoutUnread(Rewriter):
    """Drops constants and results of ops with regions; last ops first, inner regions first.

    Attributes:
      dropped: number of operands and results left out.
    """

    def __init__(self, module: Module, rule: Callable[[Op], OpRule]) -> None:
        super().__init__(module)
        self.dropped = 0
        self._rule = rule

    def ops(self, old: Region) -> list[Op]:
        read = {self.operand(x) for x in old.results}
        found: list[Op] = []
        for op in reversed(old.ops):
            results = set(map(self.value, op.results))
            if not op.effect and read.isdisjoint(results):
                continue
            new = self._without_results(op, read) if op.regions else self.op(op)
            read.update(x for _, x in new.inputs())
            found.append(new)
        return found[::-1]

    def _without_results(self, old: Op, read: set[Operand]) -> Op:
        """A new op with regions, without results outside of `read` and without unread constants."""
        if may_lose_parts(old):
            edges = self._rule(old).data_flow
            results = enumerate(old.results)
            unread = [j for j, x in results if self.value(x) not in read and not edges.carries]
            if unread:
                self.dropped += len(unread)
                old = without_results(old, unread, edges)
        return self.op(old)

    def op(self, old: Op) -> Op:
        new = super().op(old)
        if not old.regions or not may_lose_parts(old):
            return new
        edges = self._rule(old).data_flow
        inside = [_read(region) for region in new.regions]
        unread = [
            operand
            for operand, places in _constants(edges).items()
            if all(new.regions[r].args[a] not in inside[r] for r, a in places)
        ]
        self.dropped += len(unread)
        return without_operands(new, unread, edges) if unread else new


def _constants(edges: DataFlowEdges) -> dict[int, Places]:
    """By operand equal in all iterations, the arguments of regions with its value."""
    carried = {(to, place) for _, _, to, place in edges.carries}
    shared: dict[tuple[int, int], Places] = {}
    for region, place, other, other_place in edges.shared:
        shared.setdefault((other, other_place), []).append((region, place))
    found: dict[int, Places] = {}
    for operand, region, place, stacked in edges.inputs:
        if not stacked and (region, place) not in carried:
            found.setdefault(operand, []).append((region, place))
            found[operand] += shared.get((region, place), ())
    return found


def _read(region: Region) -> set[Value]:
    """Values read by the ops of a region, or returned."""
    read = {x for op in region.ops for _, x in op.inputs()}
    return read | {x for x in region.results if isinstance(x, Value)}
