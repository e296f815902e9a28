"""Second copies of ops, with new names for their results."""

from __future__ import annotations

from collections.abc import Mapping

from partir_search.ir.core import Op, Operand, Region, Value
from partir_search.passes.rewriter import Rewriter

# Suffixes of names: of values made inside of copied regions, of recomputed values, of arguments of
# regions that recompute, and of values stored for all iterations of a scan.
MOVED, AGAIN, ENTERING, STACKED = "_", "_again", "_in", "_stacked"


class RematRewriter(Rewriter):
    """Rewriter that can copy an op a second time under new names."""

    def op(self, old: Op) -> Op:
        return self.copy(old, {})

    def copy(self, op: Op, inside: Mapping[int, Value], suffix: str = "") -> Op:
        """Returns a copy of an op.

        Args:
          inside: by value id, the value to read instead of the module's.
          suffix: appended to the names of results; without a suffix, the new results replace the
            old.
        """
        if suffix:
            results = tuple([Value(-1, r.type, r.name + suffix) for r in op.results])
        else:
            results = tuple(map(self.value, op.results))
        operands: list[Operand] = []
        for x in op.operands:  # without calls of functions: programs have many thousand operands
            new = inside.get(x.id) if isinstance(x, Value) else x
            operands.append(self.operand(x) if new is None else new)
        regions = tuple([self._copied(r, suffix) for r in op.regions])
        return op.with_parts(tuple(operands), results, regions)

    def _copied(self, old: Region, suffix: str) -> Region:
        """Returns a copy of an op's region, with arguments and values of its own."""
        inside = {v.id: Value(-1, v.type, v.name + suffix) for v in old.args}
        args, ops = tuple(inside.values()), []
        for op in old.ops:
            new = self.copy(op, inside, suffix or MOVED)
            ops.append(new)
            inside |= {r.id: v for r, v in zip(op.results, new.results, strict=True)}
        results = tuple(
            inside[x.id] if isinstance(x, Value) and x.id in inside else self.operand(x)
            for x in old.results
        )
        return Region(args, tuple(ops), results)
