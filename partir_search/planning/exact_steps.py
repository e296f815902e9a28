"""Exact steps: assignments of least cost by the cost tables, one mesh axis at a time.

The simulator's seconds are nearly a sum of terms over pairs of choices (`simulator/tables`). All
tilings and loops along one mesh axis are chosen at once by variable elimination, with the further
axes fixed; axes take turns, and the tables are linearised anew at each result (PrimePar's segmented
dynamic programming, ASPLOS 2024 section 5, over the graph of the folded program). Hundreds of
choices change together, beyond the reach of single moves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from partir_search.exact.alternation import Blocks, alternate
from partir_search.exact.pairwise import Ints, PairwiseModel
from partir_search.ir.partition import Partition
from partir_search.ir.rule import NONE
from partir_search.lowering.localize import localize
from partir_search.mcts.game import Move, Score, play, rewind
from partir_search.planning.assignments import Assign, decisions_to
from partir_search.planning.game import PlanningGame
from partir_search.simulator.cost import Cost
from partir_search.simulator.tables.bound import Bound, bound_below
from partir_search.simulator.tables.tables import CostTables

MAX_LABELS = 30_000  # of all variables; tables with more take longer than a search
MAX_CHOICES = 150  # labels of one variable: a table of two variables has their product
MAX_BOUNDED = 50_000  # labels times orders of axes, for a bound
MAX_ENTRIES = 2_000_000  # of one table of elimination
EPISODES_PER_START = 300  # of the search, for exact steps from one more strategy
STARTS = 3  # most strategies from which exact steps start
ROUNDS = 4  # turns of each axis
LEAST_GAIN = 1e-4  # in log cost: axes without it after one turn each end the steps
FIRST_PRICE, PRICE_GROWTH = 0.1, 3.0  # of all bytes at the peak, in seconds of the step
MAX_PRICES = 6  # raises of prices until an assignment fits
PRICED_ROWS = 4  # of the memory curve, added at each assignment over the limits
FITTED = 2  # assignments over the limits that are fitted


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Found:
    """An assignment and the score.

    Attributes:
      labels: [variables] labels of the tables.
      score: score of the simulator's cost.
    """

    labels: Ints
    score: Score


class ExactSteps:
    """Exact steps on the folded program of a game."""

    def __init__(self, game: PlanningGame) -> None:
        """Tables of the game's program.

        Raises:
          ValueError: the costs of the game are not pairwise, or the tables are too large.
        """
        self.game = game
        self.tables = CostTables(
            game.graph,
            game.model,
            game.mesh,
            game.state,
            max_labels=MAX_LABELS,
            max_choices=MAX_CHOICES,
        )
        self._start = game.state.key()
        self._costs: dict[bytes, Cost] = {}

    def labels_here(self) -> Ints:
        """Labels of the game's current state."""
        return self.tables.labels_of(self.game.state.partition(self.game.cache.rows))

    def labels_after(self, moves: Sequence[Move]) -> Ints:
        """Labels of the state after some moves; the game's state is restored."""
        played = len(list(play(self.game, moves)))
        labels = self.labels_here()
        rewind(self.game, played)
        return labels

    def improve(self, labels: Ints) -> list[Found]:
        """All assignments visited by exact steps from an assignment, best first."""
        return self._alternate(labels, 0.0, set())

    def fit(self, start: Found) -> list[Found]:
        """All assignments visited by exact steps under a price of bytes, best first.

        The price rises until an assignment keeps the limits, then falls again to halfway, by ratio.
        """
        found, price, rows = [start], FIRST_PRICE, set[int]()
        for _ in range(MAX_PRICES):
            found = _ranked([*found, *self._alternate(found[0].labels, price, rows)])
            if found[0].score.excess == 0.0:
                lower = self._alternate(found[0].labels, price / PRICE_GROWTH**0.5, rows)
                return _ranked([*found, *lower])
            price *= PRICE_GROWTH
        return found

    def exceeds_memory(self, found: Found) -> bool:
        """True if an assignment exceeds the limits by memory, and the limits can be kept."""
        goal, cost = self.game.goal, self._cost(found.labels)
        least = dataclasses.replace(
            cost, peak_bytes=self.game.model.least_peak(self.game.mesh.devices)
        )
        return found.score.excess > 0.0 and goal(least).excess == 0.0

    def _alternate(self, labels: Ints, price: float, rows: set[int]) -> list[Found]:
        """Exact steps with a price of bytes.

        Args:
          price: of all bytes at the peak, in seconds of the step.
          rows: rows of the memory curve with the price. The highest rows at an assignment
            over the limits are added.
        """
        visited = alternate(
            functools.partial(self._costs_at, price, rows),
            lambda each: self._score(each).scalar(),
            self._blocks,
            labels,
            max_entries=MAX_ENTRIES,
            rounds=ROUNDS,
            least_gain=LEAST_GAIN,
        ).visited
        return _ranked([Found(each.labels, self._score(each.labels)) for each in visited])

    def _costs_at(self, price: float, rows: set[int], labels: Ints) -> PairwiseModel:
        with self._assigned(labels) as partition:
            model = self.tables.at(partition)
            if price:
                program = localize(partition, self.game.cache, sparse=True)
                simulated = self.game.model.simulate(program)
                cost = simulated.cost
                excess = self.game.goal(cost).excess
                if excess:
                    over = simulated.live > float(np.max(simulated.live)) * math.exp(-excess)
                    highest = np.argsort(-simulated.live, kind="stable")[:PRICED_ROWS]
                    rows.update(r for r in highest.tolist() if over[r])
                for row in sorted(rows):
                    peak = self.tables.peak_at(program, simulated, row)
                    model = model.plus(peak, price * cost.seconds / cost.peak_bytes)
            return model

    @contextlib.contextmanager
    def _assigned(self, labels: Ints) -> Iterator[Partition]:
        """Partition of an assignment; the game's state is restored."""
        self.tables.variables.assign(labels, self.game.state)
        try:
            yield self.game.state.partition(self.game.cache.rows)
        finally:
            self.game.state.restore(self._start)

    def _score(self, labels: Ints) -> Score:
        return self.game.goal(self._cost(labels))

    def _cost(self, labels: Ints) -> Cost:
        """Simulated cost of an assignment."""
        key = labels.tobytes()
        cost = self._costs.get(key)
        if cost is None:
            with self._assigned(labels) as partition:
                program = localize(partition, self.game.cache, sparse=True)
                cost = self._costs[key] = self.game.model.evaluate(program)
        return cost

    def bound(self, found: Sequence[Found]) -> Bound | None:
        """Lower bound of the seconds of all assignments.

        Args:
          found: some assignments.

        Returns:
          The bound; None if seconds are no goal, or the tables are too large.
        """
        allowed, tables = self._allowed(), self.tables
        orders = len(tables.orders if allowed else tables.orders_from(tables.orders[0]))
        if orders * sum(tables.variables.sizes) > MAX_BOUNDED:
            return None
        labels = min((each.labels for each in found), key=lambda x: self._cost(x).seconds)
        seconds = self._cost(labels).seconds
        if self._score(labels).objective != seconds:
            return None
        with self._assigned(labels) as partition:
            return bound_below(tables, partition, seconds, allowed=allowed)

    def _decided(self, axis: int, *, all_choices: bool = False) -> Iterator[tuple[int, int]]:
        """Variables decided along an axis in the game's first state, with the dim or factor.

        Args:
          all_choices: undecided variables too, with NONE.
        """
        state, variables = self.game.state, self.tables.variables
        for x, code in zip(variables.of_class.tolist(), state.tiles[axis], strict=True):
            if x >= 0 and (all_choices or code != NONE):
                yield x, max(code, NONE)
        for q, n in zip(variables.of_op.tolist(), self.game.graph.node_of, strict=True):
            if q >= 0 and n >= 0 and (all_choices or state.loops[axis][n] != NONE):
                yield q, max(state.loops[axis][n], NONE)

    def _allowed(self) -> list[Ints] | None:
        """[variables] labels that assignments may have; None if all may.

        Classes excluded from moves keep all labels, as propagation may reach them.
        """
        game, variables = self.game, self.tables.variables
        given = {a for name in game.axes for a in game.mesh.axes(name)}
        found = [np.arange(n, dtype=np.int64) for n in variables.sizes]
        for axis in range(len(game.mesh.sizes)):
            for x, code in self._decided(axis, all_choices=axis not in given):
                codes = np.maximum(variables.sets[x].codes[found[x], axis], NONE)
                found[x] = found[x][codes == code]
        return None if list(map(len, found)) == variables.sizes else found

    @functools.cached_property
    def _blocks(self) -> Blocks:
        """Per axis of the game, groups of labels equal on all further axes.

        A choice decided in the game's first state, or by propagation only, is a group alone.
        """
        game = self.game
        axes = [a for name in game.axes for a in game.mesh.axes(name)]
        return [self._groups(a) for a in axes]

    def _groups(self, axis: int) -> list[Ints]:
        variables = self.tables.variables
        known = {id(s): s.groups(axis) for s in variables.sets}
        free = [known[id(s)] for s in variables.sets]
        fixed = {int(variables.of_class[c]) for c in self.game.state.frozen}
        for x in fixed.union(x for x, _ in self._decided(axis)):
            if x >= 0:
                free[x] = np.arange(len(free[x]))
        return free

    def move(self, labels: Ints, source: str) -> Assign:
        """The assignment as a move from the game's first state."""
        state = self.game.state
        self.tables.variables.assign(labels, state)
        tiles, loops = ([row[:] for row in rows] for rows in (state.tiles, state.loops))
        state.restore(self._start)
        return Assign(source, tuple(decisions_to(state, tiles, loops)))


def _ranked(found: Sequence[Found]) -> list[Found]:
    return sorted(found, key=lambda each: each.score.rank())


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class ExactAnswer:
    """Results of exact steps.

    Attributes:
      moves: the best assignments as moves, best first.
      fits: the best is within all limits.
      bound: no assignment takes fewer seconds, on the folded program; None if unknown.
    """

    moves: Sequence[Move] = ()
    fits: bool = False
    bound: float | None = None


def exact_moves(
    game: PlanningGame,
    starts: Sequence[tuple[str, Sequence[Move]]],
    count: int,
    episodes: int = STARTS * EPISODES_PER_START,
) -> ExactAnswer:
    """The best assignments by exact steps, and a lower bound of all.

    The assignment of least energy under the bound is a further start: near the optimum if the bound
    is tight, and far from all known strategies.

    Args:
      game: in its first state.
      starts: names of strategies and their moves. Steps start from the best by score, and from the
        next by objective, as steps also keep limits.
      count: most assignments.
      episodes: of the search; with fewer than `EPISODES_PER_START` the answer is empty.

    Returns:
      At most `count` moves; none for a program without pairwise costs (rings, kept copies). No
      bound either, then.
    """
    if episodes < EPISODES_PER_START:
        return ExactAnswer()
    try:
        steps = ExactSteps(game)
        scored: dict[Score, tuple[str, Ints]] = {}
        for name, moves in starts:
            played = len(list(play(game, moves)))
            scored.setdefault(game.score(), (name, steps.labels_here()))
            rewind(game, played)
    except ValueError:
        return ExactAnswer()
    first = min(scored, key=Score.rank)
    others = sorted(scored.keys() - {first}, key=lambda score: score.objective)
    found: dict[bytes, tuple[Found, str]] = {}
    for score in (first, *others)[: min(STARTS, episodes // EPISODES_PER_START)]:
        name, labels = scored[score]
        best = steps.improve(labels)[0]
        found.setdefault(best.labels.tobytes(), (best, name))
    bound = steps.bound([best for best, _ in found.values()])
    if bound is not None:
        best = steps.improve(bound.labels)[0]
        found.setdefault(best.labels.tobytes(), (best, "bound"))
    if all(steps.exceeds_memory(best) for best, _ in found.values()):
        nearest = sorted(found.values(), key=lambda each: each[0].score.scalar())[:FITTED]
        for best, name in nearest:
            fitted = steps.fit(best)[0]
            found.setdefault(fitted.labels.tobytes(), (fitted, name))
    ranked = sorted(found.values(), key=lambda each: each[0].score.rank())
    paths: list[Move] = [steps.move(best.labels, name) for best, name in ranked[:count]]
    fits = ranked[0][0].score.excess == 0.0
    return ExactAnswer(paths, fits, bound.seconds if bound else None)
