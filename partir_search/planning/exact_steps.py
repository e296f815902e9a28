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
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from partir_search.exact.alternation import Blocks, Choices, Either, Turns, alternate, improve
from partir_search.exact.arrays import Ints
from partir_search.exact.pairwise import PairwiseModel
from partir_search.ir.partition import Partition
from partir_search.ir.rule import NONE
from partir_search.lowering.localize import localize
from partir_search.mcts.game import Move, Score, play, rewind
from partir_search.planning.assignments import Assign, decisions_to
from partir_search.planning.game import PlanningGame
from partir_search.simulator.cost import Cost
from partir_search.simulator.tables.bound import EFFORT, Bound, bound_below
from partir_search.simulator.tables.peak import highest_rows
from partir_search.simulator.tables.tables import CostTables

MAX_LABELS = 150_000  # of all variables; tables with more take longer than a search
MAX_CHOICES = 600  # labels of one variable: a table of two variables has their product
MAX_BOUNDED = 70_000, 100_000  # labels, and labels times orders of axes, for a bound
MAX_RAISED = 30_000, 50_000  # the same, for raised multipliers and a bound in several parts
MAX_ENTRIES = 2_000_000  # of one table of elimination
ROUNDS = 4  # turns of each axis
HIGHEST_ROWS = 2  # of the memory curve of an assignment, which limits know
NEAR_BEST = 0.01  # in log cost: steps this near to the best known assignment go on
RAISING = 2.0  # times the effort of a bound, for multipliers of gathers
RAISED_TURNS = 2  # of these multipliers before the bound is asked for
LEAST_GAIN = 1e-4  # in log cost: axes without it after one turn each end the steps


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
        self._choices = Choices()
        self._turns: Turns = {}
        self._costs: dict[bytes, Cost] = {}
        self._realised: dict[bytes, Ints] = {}  # by labels of an assignment
        self._highest: dict[bytes, list[tuple[float, int, int]]] = {}

    @property
    def axes(self) -> int:
        """Number of the axes that take turns."""
        return len(self._blocks)

    def labels_here(self) -> Ints:
        """Labels of the game's current state."""
        return self.tables.labels_of(self.game.state.partition(self.game.cache.rows))

    def labels_after(self, moves: Sequence[Move]) -> Ints:
        """Labels of the state after some moves; the game's state is restored."""
        played = len(list(play(self.game, moves)))
        labels = self.labels_here()
        rewind(self.game, played)
        return labels

    def improve(
        self, labels: Ints, rounds: int = ROUNDS, beat: Score | None = None, first: int = 0
    ) -> list[Found]:
        """All assignments visited by exact steps from an assignment, best first.

        Args:
          rounds: most turns along each axis.
          first: place among the search's axes of the axis with the first turn.
          beat: score of a known assignment; the steps end where they hardly lead to a better one.
        """
        visited = alternate(
            self._costs_at,
            lambda each: self._score(each).scalar(),
            self._blocks,
            labels,
            max_entries=MAX_ENTRIES,
            rounds=rounds,
            first=first,
            least_gain=LEAST_GAIN,
            beat=beat.scalar() + NEAR_BEST if beat else math.inf,
            choices=self._choices,
            realised=self.realised,
            turns=self._turns,
        ).visited
        return ranked([self.scored(each.labels) for each in visited])

    def combined(self, best: Found, others: Sequence[Found]) -> Found:
        """The best of an assignment's combinations with several assignments in turn.

        Each variable keeps its label or takes the other's along all axes at once, by elimination
        (fusion moves: Lempitsky et al., PAMI 2010), and again from the result.

        Args:
          others: assignments, of which earlier ones are combined first.
        """
        either = Either()
        for other in others:
            for _ in range(ROUNDS):
                kept = either(best.labels, other.labels)
                model = self._costs_at(best.labels, kept)
                labels = improve(model, best.labels, kept, MAX_ENTRIES).labels
                found = self.scored(self.realised(labels))
                if found.score.scalar() >= best.score.scalar() - LEAST_GAIN:
                    break
                best = found
        return best

    def scored(self, labels: Ints) -> Found:
        """An assignment with its score by the game's goal."""
        return Found(labels, self._score(labels))

    def minimises_seconds(self, labels: Ints) -> bool:
        """True if the objective is the seconds alone: free memory has no price."""
        return self._score(labels).objective == self._cost(labels).seconds

    def exceeds_memory(self, found: Found) -> bool:
        """True if an assignment exceeds the limits by memory, and the limits can be kept."""
        goal, cost = self.game.goal, self._cost(found.labels)
        least = dataclasses.replace(
            cost, peak_bytes=self.game.model.least_peak(self.game.mesh.devices)
        )
        return found.score.excess > 0.0 and goal(least).excess == 0.0

    def _costs_at(self, labels: Ints, kept: Sequence[Ints]) -> PairwiseModel:
        with self._assigned(labels) as partition:
            return self.tables.at(partition, kept, labels)

    def realised(self, labels: Ints) -> Ints:
        """Labels of the partition of an assignment.

        Unlike the assignment's if sums meet in an op without a loop: the partition passes sums on.
        """
        found = self._realised.get(labels.tobytes())
        if found is None:
            with self._assigned(labels) as partition:
                found = self.tables.labels_of(partition)
            self._realised[labels.tobytes()] = self._realised[found.tobytes()] = found
        return found

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
                simulated = self.game.model.simulate(program)
                cost = self._costs[key] = simulated.cost
                self._highest[key] = highest_rows(self.game.model, simulated, HIGHEST_ROWS)
        return cost

    def _highest_of(self, labels: Ints) -> list[tuple[float, int, int]]:
        """Bytes, row and position of the highest rows of an assignment's memory curve."""
        self._cost(labels)
        return self._highest[labels.tobytes()]

    def bound(
        self,
        found: Sequence[Found],
        known: Bound | None = None,
        promising: float = math.inf,
        *,
        raises: bool = False,
    ) -> Bound | None:
        """Lower bound of the seconds of all assignments.

        Args:
          found: some assignments.
          known: an earlier bound; the result if finished at the fewest seconds of `found`, and for
            large tables.
          promising: ends once a bound is known to be farther from the fewest seconds, relative.
          raises: raise multipliers of gathers (`bound_below`), unless the tables are too large; a
            few turns, and those left by `Bound.in_full`.

        Returns:
          The bound; None if seconds are no goal, or the tables are too large.
        """
        allowed, tables = self._allowed(), self.tables
        if not self._within(MAX_BOUNDED):
            return None
        large = not self._within(MAX_RAISED)
        raises &= not large
        labels = min((each.labels for each in found), key=lambda x: self._cost(x).seconds)
        seconds = self._cost(labels).seconds
        if not self.minimises_seconds(labels):
            return None
        done = known is not None and known.finished and known.raised >= raises
        final = large or (known is not None and known.upper <= seconds * (1.0 + LEAST_GAIN))
        if known is not None and done and final:
            return known
        with self._assigned(labels) as partition:
            return bound_below(
                tables,
                partition,
                seconds,
                allowed=allowed,
                known=known,
                promising=promising,
                raises=raises,
                turns=RAISED_TURNS,
                effort=RAISING * EFFORT if raises else EFFORT,
            )

    def bound_in_full(self, found: Sequence[Found], bound: Bound) -> Callable[[], float]:
        """Function to a bound after all steps left, with multipliers of gathers, in seconds.

        It keeps the bound's tables alone, whatever becomes of the game.

        Args:
          found: some assignments.
          bound: a bound by some of them; taken further in place, once.
        """
        if bound.raised or not self._within(MAX_RAISED):
            return bound.in_full
        labels = min((each.labels for each in found), key=lambda x: self._cost(x).seconds)
        best = self.realised(labels), self._cost(labels).seconds
        return functools.partial(bound.raised_in_full, *best, RAISING * EFFORT)

    @property
    def is_bounded(self) -> bool:
        """True if the tables are small enough for a bound."""
        return self._within(MAX_BOUNDED)

    def _within(self, limits: tuple[int, int]) -> bool:
        """True for at most so many labels, and labels times orders of axes."""
        count = sum(self.tables.variables.sizes)
        return count <= limits[0] and self._orders * count <= limits[1]

    @functools.cached_property
    def _orders(self) -> int:
        """Number of orders of axes with unlike costs."""
        tables = self.tables
        return len(tables.orders if self._allowed() else tables.orders_from(tables.orders[0]))

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
        known = {i: s.groups(axis) for i, s in {id(s): s for s in variables.sets}.items()}
        free = [known[id(s)] for s in variables.sets]
        fixed = {int(variables.of_class[c]) for c in self.game.state.frozen}
        alone: dict[int, Ints] = {}  # by number of labels: each a group
        for x in fixed.union(x for x, _ in self._decided(axis)):
            if x >= 0:
                free[x] = alone.setdefault(len(free[x]), np.arange(len(free[x])))
        return free

    def move(self, labels: Ints, source: str) -> Assign:
        """The assignment as a move from the game's first state."""
        state = self.game.state
        self.tables.variables.assign(labels, state)
        tiles, loops = ([row[:] for row in rows] for rows in (state.tiles, state.loops))
        state.restore(self._start)
        return Assign(source, tuple(decisions_to(state, tiles, loops)))


def ranked(found: Sequence[Found]) -> list[Found]:
    """Assignments in order of their scores, best first."""
    return sorted(found, key=lambda each: each.score.rank())
