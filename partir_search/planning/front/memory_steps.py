"""Exact steps under prices of bytes, for assignments from the fastest to the smallest."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from partir_search.exact.alternation import alternate
from partir_search.exact.arrays import Ints
from partir_search.exact.pairwise import PairwiseModel
from partir_search.lowering.localize import localize
from partir_search.mcts.front import nondominated, spread
from partir_search.mcts.game import Move
from partir_search.planning.exact_steps import (
    LEAST_GAIN,
    MAX_ENTRIES,
    ROUNDS,
    ExactSteps,
)
from partir_search.planning.front.visited import figures
from partir_search.planning.game import PlanningGame
from partir_search.simulator.cost import Cost

# Of all bytes at the peak of the start, in seconds of its step: from hardly any to more than all.
PRICES = (0.1, 0.3, 1.0)
EXACT = "exact steps from "
PRICED_ROWS = 4  # of the memory curve, the highest, added at each assignment
MAX_MOVES = 10  # assignments returned as moves


class MemorySteps(ExactSteps):
    """Exact steps that trade seconds for bytes, on the folded program of a game."""

    def sweep(self, start: Ints, prices: Sequence[float]) -> None:
        """Takes exact steps under each price in turn, from the best assignment of the last.

        Args:
          start: [variables] labels of the first assignment.
          prices: of all bytes at the peak of the start, in seconds of its step.
        """
        first, rows, labels = self._cost(start), set[int](), start
        for price in prices:
            per_byte = price * first.seconds / first.peak_bytes
            labels = alternate(
                functools.partial(self._priced, per_byte, rows),
                functools.partial(self._worth, per_byte),
                self._blocks,
                labels,
                max_entries=MAX_ENTRIES,
                rounds=ROUNDS,
                least_gain=LEAST_GAIN,
                choices=self._choices,
                realised=self.realised,
            ).best.labels

    def front(self) -> list[tuple[Cost, Ints]]:
        """Nondominated assignments among all visited, at most `MAX_MOVES`."""
        visited = [(cost, np.frombuffer(key, dtype=np.int64)) for key, cost in self._costs.items()]
        return spread(nondominated(visited, figures), figures, MAX_MOVES)

    def _worth(self, per_byte: float, labels: Ints) -> float:
        cost = self._cost(labels)
        return math.log(cost.seconds + per_byte * cost.peak_bytes)

    def _priced(
        self, per_byte: float, rows: set[int], labels: Ints, kept: Sequence[Ints]
    ) -> PairwiseModel:
        """Tables of seconds at an assignment, with a price on the highest rows of the memory curve.

        Args:
          per_byte: price of a byte in seconds.
          rows: rows with the price; the highest at this assignment are added.
          kept: labels of the tables.
        """
        with self._assigned(labels) as partition:
            model = self.tables.at(partition, kept, labels)
            program = localize(partition, self.game.cache, sparse=True)
            simulated = self.game.model.simulate(program)
            rows.update(np.argsort(-simulated.live, kind="stable")[:PRICED_ROWS].tolist())
            for row in sorted(rows):
                peak = self.tables.peak_at(program, simulated, row)
                model = model.plus(peak.restricted(kept), per_byte)
            return model


def memory_moves(
    game: PlanningGame, starts: Sequence[tuple[str, Sequence[Move]]]
) -> list[tuple[Move, str]]:
    """Assignments from the fastest to the smallest as moves, with words for their origin.

    Args:
      game: in its first state.
      starts: names and moves of strategies, fastest first. Prices rise from the first, and fall
        from the last.

    Returns:
      None for a program without pairwise costs, or with tables that are too large.
    """
    if not starts:
        return []
    try:
        steps = MemorySteps(game)
        labels = [steps.labels_after(moves) for _, moves in starts]
    except ValueError:
        return []
    fastest = steps.improve(labels[0])[0].labels
    steps.sweep(fastest, PRICES)
    if len(labels) > 1:
        steps.sweep(labels[-1], PRICES[::-1])
    source = " and ".join(dict.fromkeys(_origin(name) for name, _ in starts))
    return [(steps.move(found, source), f"{EXACT}{source}") for _, found in steps.front()]


def _origin(name: str) -> str:
    """Short name of a start: a strategy, or a list of moves that the search visited."""
    name = name.removeprefix(EXACT).split(":")[0]
    return name if "," not in name.split("(")[0] else "a state of the search"
