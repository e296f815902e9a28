"""Widening of groups: by the norm that Newton-Schulz divides by, by the sum at the end.

A group takes in ops before and after it as long as no more bytes enter or leave: arrays that enter
or leave move between devices.
"""

from __future__ import annotations

from collections.abc import Container

from partir_search.ir.core import Op, Value
from partir_search.passes.stacks.fingerprint import Fingerprints
from partir_search.passes.stacks.groups import Group, is_shared

MAX_OPS = 16  # that prepare one operand, at most
CUT_GROWTH = 1.01  # of the bytes that enter a group, by one operand's preparation

Row = tuple[int, ...]  # per chain, the position of an op


class Widening:
    """Widening of one group.

    Attributes:
      group: the group, changed in place.
    """

    def __init__(
        self, group: Group, prints: Fingerprints, allowed: Container[int], taken: Container[int]
    ) -> None:
        """A widening of `group`.

        Args:
          allowed: positions of ops that a chain may take in.
          taken: positions of ops in any group.
        """
        self.group, self._prints = group, prints
        self._allowed, self._taken = allowed, taken
        ops = group.region.ops
        self._maker = {r.id: i for i, op in enumerate(ops) for r in op.results}
        self._users: dict[int, list[int]] = {}
        for i, op in enumerate(ops):
            for _, v in op.inputs():
                self._users.setdefault(v.id, []).append(i)
        self._returned = {x.id for x in group.region.results if isinstance(x, Value)}

    def run(self) -> None:
        """Widens the group until every further op lets more bytes enter or leave."""
        group, changed = self.group, True
        while changed:
            changed = any(self._take(values) for values in list(group.entering))
        changed = True
        while changed:
            leaving = group.leaving()
            changed = any(self._append(values, leaving) for values in leaving)

    def _take(self, values: tuple[Value, ...]) -> bool:
        """Adds the maker of an entering value to the group, with makers of operands as needed.

        Returns:
          False if bytes that enter the group would grow beyond the limit.
        """
        rows: list[Row] = []
        todo = [values]
        while todo and len(rows) < MAX_OPS:
            row = self._row(todo.pop(), rows)
            if row is None:
                continue
            rows.append(row)
            entering = self._entering(rows)
            if self._bytes(entering) <= CUT_GROWTH * self._bytes(self.group.entering):
                self._accept(rows, entering)
                return True
            known = set(self.group.entering)
            todo = [v for v in entering if v not in known and not is_shared(v)]
            todo.sort(key=lambda v: self._maker.get(v[0].id, -1))  # users before makers
        return False

    def _append(self, values: tuple[Value, ...], leaving: list[tuple[Value, ...]]) -> bool:
        """Adds the only user of a leaving value to the group.

        Returns:
          False if there are more users, if the user reads other values from outside of the group,
          or if bytes that leave the group would grow.
        """
        row = []
        for places, v in zip(self.group.members, values, strict=True):
            users = {i for i in self._users.get(v.id, ()) if i not in places}
            if len(users) != 1 or v.id in self._returned:
                return False
            row.append(users.pop())
        if not self._alike(tuple(row)):
            return False
        entering = self._entering([tuple(row)])
        if not entering or not set(entering) <= set(self.group.entering):
            return False
        members = [[*places, i] for places, i in zip(self.group.members, row, strict=True)]
        after = Group(self.group.region, members, entering).leaving()
        if self._bytes(after) > self._bytes(leaving):
            return False
        self._accept([tuple(row)], entering)
        return True

    def _alike(self, row: Row) -> bool:
        """True if the ops of a row, one per chain, are alike and free to join the chains."""
        ops = [self.group.region.ops[i] for i in row]
        free = all(i in self._allowed and i not in self._taken for i in row)
        plain = not any(op.effect or op.regions for op in ops)
        return free and plain and len({self._prints(op) for op in ops}) == 1 < len(set(row))

    def _row(self, values: tuple[Value, ...], rows: list[Row]) -> Row | None:
        """Positions of the ops that make a value of each chain; None if no chain may take them."""
        ops = self.group.region.ops
        row = tuple(self._maker.get(v.id, -1) for v in values)
        if is_shared(values) or len(set(row)) < len(row) or min(row) < 0 or not self._alike(row):
            return None
        if len({_place(ops[i], v) for i, v in zip(row, values, strict=True)}) > 1:
            return None
        for k, i in enumerate(row):
            inside = {*self.group.members[k], *(r[k] for r in rows)}
            for r in ops[i].results:
                if r.id in self._returned or not inside.issuperset(self._users.get(r.id, ())):
                    return None
        return row

    def _entering(self, rows: list[Row]) -> list[tuple[Value, ...]]:
        """[values][chains] values read from outside by the group with further ops."""
        found: list[list[Value]] = []
        for k in range(len(self.group.members)):
            places = sorted([*self.group.members[k], *(row[k] for row in rows)])
            found.append(self._prints.chain([self.group.region.ops[i] for i in places])[1])
        return list(zip(*found, strict=True)) if len(set(map(len, found))) == 1 else []

    @staticmethod
    def _bytes(entering: list[tuple[Value, ...]]) -> int:
        return sum(values[0].type.nbytes for values in entering if not is_shared(values))

    def _accept(self, rows: list[Row], entering: list[tuple[Value, ...]]) -> None:
        group = self.group
        for k, places in enumerate(group.members):
            places[:] = sorted([*places, *(row[k] for row in rows)])
        group.entering[:] = entering


def _place(op: Op, value: Value) -> int:
    return next(k for k, r in enumerate(op.results) if r is value)
