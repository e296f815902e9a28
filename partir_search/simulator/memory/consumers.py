"""Consumers of values under recomputation of elementwise ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from partir_search.ir.analysis.def_use import DefUse
from partir_search.ir.core import Op, Region
from partir_search.ir.rule import OpRule


class Consumers:
    """Ops of a region that read a value, directly or through recomputed elementwise ops.

    Op ids grow along a region, so the largest id is the last op.

    Attributes:
      last: by value id, id of the value's last consumer that stores a result.
    """

    def __init__(
        self,
        region: Region,
        rules: Sequence[OpRule],
        uses: DefUse,
        stored: Set[int],
        one_hot: Set[int],
    ) -> None:
        """Finds the last consumer of each value.

        Args:
          rules: per op id.
          uses: def-use analysis of the region's module.
          stored: ids of values stored in any case.
          one_hot: ids of recomputed ops that are not elementwise (`Dtypes.one_hot`).
        """
        self.rules, self.uses, self.stored, self.one_hot = rules, uses, stored, one_hot
        self.last = last = dict[int, int]()
        for op in reversed(region.ops):
            end = self._end(op)
            for _, v in op.inputs():
                if end > last.get(v.id, -1):
                    last[v.id] = end

    def _end(self, op: Op) -> int:
        """Id of the last op to read an op's operands: the last consumer of a recomputed op."""
        if op.regions or not (self.rules[op.id].elementwise or op.id in self.one_hot):
            return op.id
        if any(r.id in self.stored for r in op.results):
            return op.id
        return max(self.last.get(r.id, op.id) for r in op.results)

    def sole(self, op: Op, leaves: Sequence[int], made: Mapping[int, int]) -> list[int]:
        """Leaves with a longer life, if the consumers of an op's result recompute the result.

        Arguments count, as the result is a second copy of their data. A leaf with a further
        consumer, at or after the last use of the result, lives as long anyway and does not count.

        Args:
          leaves: ids of the stored values from which the result is computed.
          made: by id of a value made in the region, the position of the op.
        """
        until = self.last.get(op.results[0].id, op.id)
        # A leaf that is read after the result lives on anyway.
        candidates = {s for s in leaves if s in made and self.last.get(s, until) <= until}
        chain: dict[int, int] = {}  # by op between leaves and `op`, last read not through `op`
        for between in self._between(op, leaves) if candidates else ():
            chain[between.id] = max(self._last_besides(r.id, op, chain) for r in between.results)
        last = {s: self._last_besides(s, op, chain) for s in candidates}
        return [s for s in leaves if s not in made or last.get(s, until) < until]

    def _between(self, op: Op, leaves: Sequence[int]) -> list[Op]:
        """Ops on the paths from the leaves to an op, last first."""
        found, waiting = dict[int, Op](), [op]
        while waiting:
            for _, v in waiting.pop().inputs():
                maker = self.uses.makers[v.id]
                if v.id not in leaves and maker is not None and maker.id not in found:
                    found[maker.id] = maker
                    waiting.append(maker)
        return [found[i] for i in sorted(found, reverse=True)]

    def _last_besides(self, v: int, op: Op, chain: Mapping[int, int]) -> int:
        """Id of the last op to read a value other than through `op`, or -1.

        Args:
          chain: by op id, the answer for the op's results, where known.
        """
        users = (u for u in self.uses.users[v] if u is not op)
        return max((chain[u.id] if u.id in chain else self._end(u) for u in users), default=-1)
