"""Exact steps within limits of memory.

Rows of the memory curve, each with the copies at one op, have prices: the multipliers of the dual
(`exact/limited.py`). A row gets a price as soon as some assignment exceeds the limit there, also
one that is then rejected: else the next prices lead to the same assignment again.
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Sequence

import numpy as np

from partir_search.exact.arrays import Ints
from partir_search.exact.limited import LimitedBlock
from partir_search.lowering.localize import localize
from partir_search.planning.exact_steps import (
    LEAST_GAIN,
    MAX_ENTRIES,
    ROUNDS,
    ExactSteps,
    Found,
    ranked,
)
from partir_search.planning.game import PlanningGame

FIRST_PRICE = 1.0  # of all bytes of a row, in seconds of the step
MAX_ROWS = 8  # with prices in one turn
PENALTY = 10.0  # of excess, in log seconds, until an assignment is within the limits
MAX_FAMILIES = 3  # of values of one size
CORRECTIONS = 4  # of limits in one turn, where the tables' bytes are off
LEAST = 1e-4  # of the limit, in one correction

Row = tuple[int, int]  # of the memory curve, and the position whose temporaries count


class FittedSteps(ExactSteps):
    """Exact steps within a limit of the bytes of a row of the memory curve."""

    def __init__(self, game: PlanningGame) -> None:
        super().__init__(game)
        self._prices: dict[Row, float] = {}  # in seconds of all bytes of the limit

    def fit(self, start: Found) -> list[Found]:
        """All assignments visited by exact steps from one that exceeds the limits, best first."""
        limit = self._cost(start.labels).peak_bytes * math.exp(-start.score.excess)
        best, found, stale = start, [start], 0
        blocks = [*self._blocks, *self._families]
        for turn in range(ROUNDS * len(self._blocks) + len(blocks)):
            visited = self._turn(best.labels, blocks[turn % len(blocks)], limit)
            found += visited
            after = min((best, *visited), key=_rank)
            stale = 0 if self._gains(best, after) else stale + 1
            best = after
            if stale == len(blocks):
                break
        return ranked(found)

    @staticmethod
    def _gains(before: Found, after: Found) -> bool:
        (over, cost), (over_after, cost_after) = _rank(before), _rank(after)
        return over_after < over or cost_after < cost - LEAST_GAIN

    @functools.cached_property
    def _families(self) -> list[list[Ints]]:
        """Blocks of all axes at once, each of the values of one size and of the ops of these.

        A parameter, its gradient and its moments change their tiles together; one axis at a time,
        the states in between may be slower or larger. The families with the most bytes.
        """
        game, variables = self.game, self.tables.variables
        members = collections.defaultdict[int, set[int]](set)
        total = collections.Counter[int]()
        values = game.graph.module.values
        for v in values:
            if (x := variables.of_value(v.id)) >= 0:
                members[math.prod(v.type.shape)].add(x)
        for op in game.graph.module.ops:
            if (q := int(variables.of_op[op.id])) >= 0:
                for v in (*(x for _, x in op.inputs()), *op.results):
                    members[math.prod(v.type.shape)].add(q)
        for v in game.graph.module.body.args:
            total[math.prod(v.type.shape)] += v.type.nbytes
        alone: list[Ints] = [np.arange(n, dtype=np.int64) for n in variables.sizes]
        fixed = {int(variables.of_class[c]) for c in game.state.frozen}
        given = [a for name in game.axes for a in game.mesh.axes(name)]
        fixed.update(x for a in range(len(game.mesh.sizes)) for x, _ in self._decided(a))
        sets = {id(labels): labels for labels in variables.sets}
        together = {i: labels.groups(*given) for i, labels in sets.items()}
        return [
            [
                together[id(labels)] if x in members[size] and x not in fixed else alone[x]
                for x, labels in enumerate(variables.sets)
            ]
            for size, _ in total.most_common(MAX_FAMILIES)
        ]

    def smallest(self) -> Found:
        """The assignment of the lowest peak of all visited."""
        key = min(self._costs, key=lambda labels: self._costs[labels].peak_bytes)
        return self.scored(np.frombuffer(key, dtype=np.int64))

    def _turn(self, labels: Ints, block: Sequence[Ints], limit: float) -> list[Found]:
        """Assignments that differ in one block.

        Args:
          limit: bytes of a row of the memory curve.
        """
        labels = self.realised(labels)
        seconds, rows = self._cost(labels).seconds, list[Row]()
        self._meet(labels, limit)
        kept = self._choices(block, labels)
        with self._assigned(labels) as partition:
            model = self.tables.at(partition, kept, labels)
            program = localize(partition, self.game.cache, sparse=True)
            simulated = self.game.model.simulate(program)
        limited = LimitedBlock(model, labels, kept, MAX_ENTRIES)

        def add(row: Row) -> None:
            usage = self.tables.peak_at(program, simulated, *row)
            limited.limit(usage, limit, self._prices.setdefault(row, FIRST_PRICE * seconds))
            rows.append(row)

        for row in sorted(self._prices, key=self._prices.__getitem__)[-MAX_ROWS:]:
            add(row)
        visited: dict[bytes, Found] = {}
        for attempt in range(CORRECTIONS):
            for x in limited.solve(None if attempt else limited.prices):
                visited[x.tobytes()] = self.scored(x)
            within = limited.cheapest_within()
            if within is None or self._score(within.labels).excess == 0.0:
                break
            most, *highest = self._highest_of(within.labels)[0]
            row = (highest[0], highest[1])
            if row in rows:
                number = rows.index(row)
                limited.tighten(number, max(most - within.usages[number], LEAST * limit))
            else:  # copies at another op than here
                add(row)
        self._prices.update(zip(rows, limited.prices.tolist(), strict=True))
        for each in visited.values():
            self._meet(each.labels, limit)
        return list(visited.values())

    def _meet(self, labels: Ints, limit: float) -> None:
        """Gives prices to the highest rows of an assignment over the limit."""
        first = FIRST_PRICE * self._cost(labels).seconds
        for most, row, position in self._highest_of(labels):
            if most > limit:
                self._prices.setdefault((row, position), first)


def _rank(found: Found) -> tuple[bool, float]:
    """Sort key: assignments within the limits first, others mostly by their excess."""
    return found.score.excess > 0.0, found.score.scalar(PENALTY)
