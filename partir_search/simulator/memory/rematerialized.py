"""For what values are kept, if elementwise ones are made again wherever they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from partir_search.ir.core import Op, Region
from partir_search.ir.rule import OpRule

Users = Sequence[Sequence[Op]]


class Readers:
    """Ops of a region that read a value, directly or by way of elementwise ops.

    Ops go by their ids, and ids grow along the region.

    Attributes:
      last: by value id, the last op that reads the value and stores its own result.
    """

    def __init__(
        self,
        region: Region,
        rules: Sequence[OpRule],
        users: Users,
        stored: Set[int],
        one_hot: Set[int],
    ) -> None:
        """Readers of a region's values.

        Args:
          users: by value id, the ops that read it.
          stored: ids of values that are not made again.
          one_hot: ids of ops that are, though they are not elementwise.
        """
        self.rules, self.users, self.stored, self.one_hot = rules, users, stored, one_hot
        self.makers = {r.id: op for op in region.ops for r in op.results}
        self.last = last = dict[int, int]()
        for op in reversed(region.ops):
            end = self._end(op)
            for _, v in op.inputs():
                if end > last.get(v.id, -1):
                    last[v.id] = end

    def _end(self, op: Op) -> int:
        """Until when an op's operands are read: while its results are, if they are not stored."""
        if op.regions or not (self.rules[op.id].elementwise or op.id in self.one_hot):
            return op.id
        if any(r.id in self.stored for r in op.results):
            return op.id
        return max(self.last.get(r.id, op.id) for r in op.results)

    def kept_for(self, op: Op, leaves: Sequence[int], made: Mapping[int, int]) -> list[int]:
        """Those of the leaves that would be kept for the result of an op alone, were it made again
        wherever it is read: arguments (of which it is a copy in another form), and what nothing
        else reads as late.

        Args:
          leaves: the stored values that the op's result is made of, `made` by ops or arguments.
        """
        until = self.last.get(op.results[0].id, op.id)
        # What is read after the result is, something else reads.
        doubtful = {s for s in leaves if s in made and self.last.get(s, until) <= until}
        chain: dict[int, int] = {}  # by op between, the last read of its results but for `op`
        for between in self._between(op, leaves) if doubtful else ():
            chain[between.id] = max(self._other(r.id, op, chain) for r in between.results)
        last = {s: self._other(s, op, chain) for s in doubtful}
        return [s for s in leaves if s not in made or last.get(s, until) < until]

    def _between(self, op: Op, leaves: Sequence[int]) -> list[Op]:
        """The ops between the leaves and an op, last first."""
        found, waiting = dict[int, Op](), [op]
        while waiting:
            for _, v in waiting.pop().inputs():
                maker = self.makers.get(v.id)
                if v.id not in leaves and maker is not None and maker.id not in found:
                    found[maker.id] = maker
                    waiting.append(maker)
        return [found[i] for i in sorted(found, reverse=True)]

    def _other(self, v: int, op: Op, chain: Mapping[int, int]) -> int:
        """The last op that reads a value, but for one; known for ops of a chain."""
        users = (u for u in self.users[v] if u is not op)
        return max((chain[u.id] if u.id in chain else self._end(u) for u in users), default=-1)
