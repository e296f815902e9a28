"""Removal of unread operands and results of ops with regions."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from partir_search.ir.core import Module, Op, Region, Value
from partir_search.ir.data_flow import DataFlowEdges
from partir_search.ir.rule import OpRule
from partir_search.passes.constants_of_regions import arguments_of
from partir_search.passes.rewriter import Rewriter
from partir_search.rules.region_parts import may_lose_parts, without_operands, without_results


def without_unread(module: Module, rule: Callable[[Op], OpRule]) -> Module:
    """Module without unread operands and results of loops, and without their makers.

    Differentiation leaves residuals without a reader in the backward loop; XLA removes such stacks.
    Carries are kept.
    """
    if not any(_unread_parts(module, rule)):
        return module
    return _WithoutUnread(module, rule).run()


def _unread_parts(module: Module, rule: Callable[[Op], OpRule]) -> Iterator[bool]:
    """True for each op with regions and with a part to leave out."""
    loops = [op for op in module.ops if op.regions and may_lose_parts(op)]
    if not loops:
        return
    regions = (module.body, *(region for op in module.ops for region in op.regions))
    read = {x for region in regions for x in _read(region)}
    for op in loops:
        edges = rule(op).data_flow
        yield bool(_unread_results(op, edges, read) or _unread_operands(op, edges, read))


class _WithoutUnread(Rewriter):
    """Drops operands and results of ops with regions; last ops first, inner regions first."""

    def __init__(self, module: Module, rule: Callable[[Op], OpRule]) -> None:
        super().__init__(module)
        self._rule = rule

    def ops(self, old: Region) -> list[Op]:
        read = {self.value(x) for x in old.results if isinstance(x, Value)}
        found: list[Op] = []
        for op in reversed(old.ops):
            results = set(map(self.value, op.results))
            if not op.effect and read.isdisjoint(results):
                continue
            new = self._without_results(op, read) if op.regions else self.op(op)
            read.update(x for _, x in new.inputs())
            found.append(new)
        return found[::-1]

    def _without_results(self, old: Op, read: Container[Value]) -> Op:
        """A new op with regions, without results outside of `read` and without unread operands."""
        if may_lose_parts(old):
            edges = self._rule(old).data_flow
            kept = {x for x in old.results if self.value(x) in read}
            unread = _unread_results(old, edges, kept)
            old = without_results(old, unread, edges) if unread else old
        return self.op(old)

    def op(self, old: Op) -> Op:
        new = super().op(old)
        if not old.regions or not may_lose_parts(old):
            return new
        edges = self._rule(old).data_flow
        unread = _unread_operands(new, edges, {x for r in new.regions for x in _read(r)})
        return without_operands(new, unread, edges) if unread else new


def _unread_results(op: Op, edges: DataFlowEdges, read: Container[Value]) -> list[int]:
    """Indices of unread results, but for the last values of carries."""
    carried = {j for *_, j in edges.finals}
    return [j for j, x in enumerate(op.results) if x not in read and j not in carried]


def _unread_operands(op: Op, edges: DataFlowEdges, read: Container[Value]) -> list[int]:
    """Indices of operands unread in all regions, but for carries."""
    return [
        operand
        for operand, places in arguments_of(edges).items()
        if all(op.regions[r].args[a] not in read for r, a in places)
    ]


def _read(region: Region) -> set[Value]:
    """Values read by the ops of a region, or returned."""
    read = {x for op in region.ops for _, x in op.inputs()}
    return read | {x for x in region.results if isinstance(x, Value)}
