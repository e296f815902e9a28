"""Stored values in place of equal values computed again, after recognition of attention."""

from __future__ import annotations

from collections.abc import Mapping

from partir_search.ir.composite import Body
from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.ir.role import Role
from partir_search.passes.rewriter import Rewriter
from partir_search.passes.unread import without_unread
from partir_search.rules.registry import RuleTable, role_of


def without_kept(module: Module, table: RuleTable) -> Module:
    """Module with reads of stored values (`rules/kept.py`), without the ops repeated for them."""
    rewriter = _StoredValues(module)
    new = rewriter.run()
    return without_unread(new, table) if rewriter.count else module


class _StoredValues(Rewriter):
    """Reads stored values in place of equal ones; ops are sorted by dependence.

    Attributes:
      count: number of values read from storage.
    """

    def __init__(self, module: Module) -> None:
        super().__init__(module)
        self.count = 0

    def ops(self, old: Region) -> list[Op]:
        stored = dict[Value, Operand]()
        for op in old.ops:
            stored.update(_stored(op))
        if not stored:
            return [self.op(op) for op in old.ops]
        self.count += len(stored)
        maker = {r: op for op in old.ops for r in op.results}
        done: set[int] = set()
        new: list[Op] = []

        def visit(op: Op) -> None:
            if id(op) in done:
                return
            done.add(id(op))
            operands = tuple([stored.get(x, x) if isinstance(x, Value) else x for x in op.operands])
            op = op.with_parts(operands, op.results, op.regions)
            for _, x in op.inputs():
                if x in maker:
                    visit(maker[x])
            if role_of(op) is not Role.KEPT:
                new.append(self.op(op))

        for op in old.ops:
            visit(op)
        for x, source in stored.items():
            if isinstance(source, Value):
                self.new[x] = self.value(source)
        return new


def _stored(op: Op) -> Mapping[Value, Operand]:
    """By value, the stored value equal to it, as an op says."""
    if role_of(op) is Role.KEPT:
        again, kept = op.operands
        return {r: kept for r in (again, *op.results) if isinstance(r, Value)}
    body = op.params.get("body")
    if not isinstance(body, Body):
        return {}
    kept_at = {m.outs[0]: m.reads[1] for m in body.members if m.rule.role is Role.KEPT}
    places = zip(op.results, body.results, strict=True)
    found = ((r, kept_at.get(p, body.operands)) for r, p in places)
    return {r: op.operands[at] for r, at in found if at < body.operands}
