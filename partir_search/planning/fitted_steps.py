"""Exact steps within limits of memory.

Rows of the memory curve have prices, the multipliers of the dual (`exact/limited.py`). A row gets a
price as soon as some assignment exceeds the limit there, also an assignment that is then rejected:
else later prices lead to the same assignment again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from partir_search.exact.limited import LimitedBlock
from partir_search.exact.pairwise import Floats, Ints
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
NEW_ROWS = 2  # of the memory curve, the highest over the limit, added at one assignment
MAX_ROWS = 6  # with prices in one turn
CORRECTIONS = 3  # of limits in one turn, where the tables' bytes are off


class FittedSteps(ExactSteps):
    """Exact steps within a limit of the bytes of a row of the memory curve."""

    def __init__(self, game: PlanningGame) -> None:
        super().__init__(game)
        self._prices: dict[int, float] = {}  # by row, in seconds of all bytes of the limit

    def fit(self, start: Found) -> list[Found]:
        """All assignments visited by exact steps from one that exceeds the limits, best first."""
        limit = self._cost(start.labels).peak_bytes * math.exp(-start.score.excess)
        best, found, stale = start, [start], 0
        blocks = self._blocks
        for turn in range(ROUNDS * len(blocks)):
            visited = self._turn(best.labels, blocks[turn % len(blocks)], limit)
            found += visited
            after = min((best, *visited), key=self._rank)
            stale = 0 if self._gains(best, after) else stale + 1
            best = after
            if stale == len(blocks):
                break
        return ranked(found)

    def _gains(self, before: Found, after: Found) -> bool:
        (over, cost), (over_after, cost_after) = self._rank(before), self._rank(after)
        return over_after < over or cost_after < cost - LEAST_GAIN

    def _rank(self, found: Found) -> tuple[bool, float]:
        """Sort key: assignments within the limits first, others by their Lagrangian."""
        seconds = max(found.score.objective, 1e-300)
        penalty = sum(self._prices.values()) / seconds
        return found.score.excess > 0.0, found.score.scalar(max(penalty, FIRST_PRICE))

    def _turn(self, labels: Ints, block: Sequence[Ints], limit: float) -> list[Found]:
        """Assignments that differ in one block.

        Args:
          limit: bytes of a row of the memory curve.
        """
        with self._assigned(labels) as partition:
            model = self.tables.at(partition)
            program = localize(partition, self.game.cache, sparse=True)
            simulated = self.game.model.simulate(program)
            limited = LimitedBlock(model, labels, block, MAX_ENTRIES)
            seconds, rows = simulated.cost.seconds, list[int]()

            def add(row: int) -> None:
                usage = self.tables.peak_at(program, simulated, row)
                limited.limit(usage, limit, self._prices.setdefault(row, FIRST_PRICE * seconds))
                rows.append(row)

            self._meet(simulated.live, limit, seconds)
            for row in sorted(self._prices, key=self._prices.__getitem__)[-MAX_ROWS:]:
                add(row)
            visited: dict[bytes, Found] = {}
            for attempt in range(CORRECTIONS):
                for x in limited.solve(None if attempt else limited.prices):
                    visited[x.tobytes()] = self.scored(x)
                within = limited.cheapest_within()
                if within is None or self._score(within.labels).excess == 0.0:
                    break
                live = self._live_of(within.labels)
                highest = int(np.argmax(live))
                if highest in rows:  # copies at other ops than here
                    number = rows.index(highest)
                    limited.tighten(number, float(live[highest]) - within.usages[number])
                else:
                    add(highest)
            self._prices.update(zip(rows, limited.prices.tolist(), strict=True))
        for each in visited.values():
            self._meet(self._live_of(each.labels), limit, seconds)
        return list(visited.values())

    def _meet(self, live: Floats, limit: float, seconds: float) -> None:
        """Gives prices to the highest rows over the limit.

        Args:
          live: [rows] bytes.
          seconds: of a step.
        """
        highest = np.argsort(-live, kind="stable")[:NEW_ROWS]
        for row in highest[live[highest] > limit].tolist():
            self._prices.setdefault(row, FIRST_PRICE * seconds)
