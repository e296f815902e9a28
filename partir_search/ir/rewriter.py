"""Rewriter of regions: new ops and values in place of old ones, op by op."""

from __future__ import annotations

from collections.abc import Sequence

from partir_search.ir.core import Op, Operand, Region, Value


class RegionRewriter:
    """Copies regions with new values and ops, as modules never change.

    The base class copies. A subclass overrides `ops` to drop, add or join ops of a region, `op` to
    change one, `value` to change types of values.

    Attributes:
      new: new value by old value, as far as made.
    """

    def __init__(self) -> None:
        self.new: dict[Value, Value] = {}

    def region(self, old: Region) -> Region:
        """New region in place of `old`."""
        args = tuple(map(self.value, old.args))
        ops = tuple(self.ops(old))
        return Region(args, ops, tuple(map(self.operand, old.results)))

    def ops(self, old: Region) -> Sequence[Op]:
        """New ops in place of the ops of `old`."""
        return [self.op(op) for op in old.ops]

    def op(self, old: Op) -> Op:
        """New op in place of `old`."""
        operands, regions, results = self.rewritten(old)
        return old.with_parts(operands, results, regions)

    def rewritten(
        self, old: Op
    ) -> tuple[tuple[Operand, ...], tuple[Region, ...], tuple[Value, ...]]:
        """Operands, regions and results of the new op in place of `old`."""
        operands = tuple(map(self.operand, old.operands))
        regions = tuple(map(self.region, old.regions))
        return operands, regions, tuple(map(self.value, old.results))

    def operand(self, x: Operand) -> Operand:
        """New operand in place of `x`."""
        return self.value(x) if isinstance(x, Value) else x

    def value(self, old: Value) -> Value:
        """New value in place of `old`, made on demand."""
        found = self.new.get(old)
        if found is None:
            found = self.new[old] = Value(-1, old.type, old.name)
        return found
