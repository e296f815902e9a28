"""Consumers of values where elementwise values are recomputed in their consumers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from partir_search.ir.core import Op, Region
from partir_search.ir.rule import OpRule

Users = Sequence[Sequence[Op]]


class Consumers:
    """Ops of a region that read a value, directly or by way of recomputed elementwise ops.

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
        """Consumers of a region's values.

        Args:
          users: by value id, the ops that read it.
          stored: ids of values that are stored in any case.
          one_hot: ids of ops that are recomputed though they are not elementwise.
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
        """Id of the last op that reads an op's operands, by way of its results if not stored."""
        if op.regions or not (self.rules[op.id].elementwise or op.id in self.one_hot):
            return op.id
        if any(r.id in self.stored for r in op.results):
            return op.id
        return max(self.last.get(r.id, op.id) for r in op.results)

    def sole(self, op: Op, leaves: Sequence[int], made: Mapping[int, int]) -> list[int]:
        """Leaves that stay alive for an op's result alone if its consumers recompute the result:
        arguments, of which the result is a copy in another form, and values read by nothing else
        as late.

        Args:
          leaves: stored values that the op's result is computed from.
          made: by id of a value that an op of the region makes, the op's position.
        """
        until = self.last.get(op.results[0].id, op.id)
        # A value read after the result has another consumer.
        doubtful = {s for s in leaves if s in made and self.last.get(s, until) <= until}
        chain: dict[int, int] = {}  # by op between, the last read of its results but for `op`
        for between in self._between(op, leaves) if doubtful else ():
            chain[between.id] = max(self._other(r.id, op, chain) for r in between.results)
        last = {s: self._other(s, op, chain) for s in doubtful}
        return [s for s in leaves if s not in made or last.get(s, until) < until]

    def _between(self, op: Op, leaves: Sequence[int]) -> list[Op]:
        """Ops between the leaves and an op, last first."""
        found, waiting = dict[int, Op](), [op]
        while waiting:
            for _, v in waiting.pop().inputs():
                maker = self.makers.get(v.id)
                if v.id not in leaves and maker is not None and maker.id not in found:
                    found[maker.id] = maker
                    waiting.append(maker)
        return [found[i] for i in sorted(found, reverse=True)]

    def _other(self, v: int, op: Op, chain: Mapping[int, int]) -> int:
        """Id of the last op besides `op` that reads a value; `chain` has known ones."""
        users = (u for u in self.users[v] if u is not op)
        return max((chain[u.id] if u.id in chain else self._end(u) for u in users), default=-1)
