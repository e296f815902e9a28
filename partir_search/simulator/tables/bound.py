"""Lower bound of the seconds of all partitions, with removal of labels.

A label with a bound of its own above the seconds of a known plan is in no faster partition. Without
these labels less compute can hide a gather and fewer uses can share a copy: the tables rise, and
more labels are removed. Each order of the mesh's axes has tables and a bound; orders that exchange
like axes have the same. The least bound holds for all partitions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from partir_search.exact.arrays import Floats, Pair
from partir_search.exact.elimination import eliminate, elimination_order, least_completion
from partir_search.exact.pairwise import Labelling, PairwiseModel
from partir_search.exact.proof import prove
from partir_search.exact.reduction import reduce
from partir_search.exact.tree_bound import TreeBound
from partir_search.ir.partition import Partition
from partir_search.simulator.arrays import Ints
from partir_search.simulator.tables.ordered import OrderedTables
from partir_search.simulator.tables.tables import CostTables

ROUNDING = 1e-6  # tolerance of the known plan's seconds, relative
JOINT = 1e-3  # of the seconds, at stake in copies that get a variable of their own
SWEEPS = 8  # message passes per round of removal
LEAST_GAIN = 1e-4  # of a message pass, relative
LEAST_REMOVED = 0.03  # fraction of the labels, for another round
ROUNDS = 4  # of removal
LEAST_RAISED = 0.001  # of the seconds, by multipliers
STALE = 3  # turns of multipliers that raise no more, at the end
TURNS = 12  # of multipliers
SWEEPS_SOLVED, LEAST_GAIN_SOLVED = 40, 1e-5  # of a model with multipliers
NEAR = 0.002  # of the seconds, at which the bound is near enough
MAX_ENTRIES = 10_000_000  # of one table of elimination
EFFORT = 1.0  # nominal seconds of message passes
PAIR_SECONDS, ENTRY_SECONDS = 1.5e-5, 4e-9  # of a sweep, nominal: per table, and per entry


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Bound:
    """Lower bound of seconds.

    Attributes:
      seconds: no partition takes fewer seconds, by the simulator.
      exact: each order's bound is the minimum of the order's tables, or above the known seconds.
      found: labellings of least energy under the tables of an order, or nearly so.
      upper: seconds of the known partition; no fewer than `seconds`.
      finished: False if ended by `promising`.
      raised: multipliers of gathers were raised as far as the effort allowed.
      started: state of each order, for `known` of `bound_below`.
    """

    seconds: float
    exact: bool
    found: Sequence[Ints]
    upper: float
    finished: bool
    raised: bool
    started: Sequence[_OrderBound] = dataclasses.field(repr=False)

    def in_full(self) -> float:
        """The bound after all steps left, as without a limit of turns, in seconds."""
        while not (lowest := min(self.started, key=lambda each: each.seconds)).finished:
            lowest.refine()
        return min(lowest.seconds, self.upper)

    def raised_in_full(self, labels: Ints, upper: float, effort: float) -> float:
        """The bound with multipliers of gathers, raised without a limit of turns, in seconds.

        Args:
          labels / upper: plan of at most `self.upper` seconds, and these seconds.
          effort: as of `bound_below`.
        """
        for each in self.started:
            each.begin_again(labels, upper, effort / len(self.started), True)
        return min(self.in_full(), upper)


def bound_below(
    tables: CostTables,
    partition: Partition,
    upper: float,
    *,
    allowed: Sequence[Ints] | None = None,
    known: Bound | None = None,
    promising: float = np.inf,
    raises: bool = True,
    turns: float = np.inf,
    max_entries: int = MAX_ENTRIES,
    effort: float = EFFORT,
    should_continue: Callable[[], bool] = lambda: True,
) -> Bound:
    """Bounds the seconds of all partitions.

    The order with the least bound is refined first. Ended early, the bound is lower.

    Args:
      partition: plan at which the tables are tight where they can be.
      upper: seconds of a known plan; the bound is not above.
      allowed: [variables] labels that partitions may have, by default all.
      known: an earlier bound by a partition of no fewer seconds, whose removed labels stay removed.
      promising: ends once a bound after removal of labels is farther from `upper`, relative.
      raises: raise multipliers of gathers, which takes most of the effort.
      turns: of multipliers, of all orders; `Bound.in_full` takes those left.
      max_entries: limit of a table of exact elimination.
      effort: limit of message passes in nominal seconds, the same on every machine.
      should_continue: called between passes; False ends the computation after one pass per order.
    """
    labels = tables.labels_of(partition)
    if known is not None:
        started = known.started
        for each in started:
            each.begin_again(labels, upper, effort / len(started), raises)
    else:
        orders = tables.orders_from(partition.order) if allowed is None else tables.orders
        started = [
            _OrderBound(
                tables.ordered(order),
                labels,
                upper,
                allowed,
                effort / len(orders),
                max_entries,
                should_continue,
            )
            for order in orders
        ]
        for each in started:
            each.remove_labels(1)
            each.begin_again(labels, upper, effort / len(started), raises)
    finished, last = True, sum(each.turns for each in started) + turns
    while should_continue() and sum(each.turns for each in started) < last:
        lowest = min(started, key=lambda each: each.seconds)
        if lowest.finished:
            break
        lowest.refine()
        if lowest.seconds < upper * (1.0 - promising):
            finished = False
            break
    lowest = min(started, key=lambda each: each.seconds)
    exact = all(each.exact or each.seconds >= upper for each in started)
    found = [labels for each in started for labels in each.labellings()]
    return Bound(min(lowest.seconds, upper), exact, found, upper, finished, raises, started)


Point = tuple[Ints, float, Floats | None]
"""Labelling of least energy found in a model, the model's bound, and its multipliers."""


class _OrderBound:
    """Bound of one order of axes, refined step by step.

    Attributes:
      tables: of the remaining labels.
      seconds: the bound.
      turns: of multipliers so far.
      finished / exact: no step is left; the bound is the tables' minimum.
    """

    def __init__(
        self,
        tables: OrderedTables,
        labels: Ints,
        upper: float,
        allowed: Sequence[Ints] | None,
        effort: float,
        max_entries: int,
        should_continue: Callable[[], bool],
    ) -> None:
        self.tables, self.seconds, self._max_entries = tables, -np.inf, max_entries
        self.finished = self.exact = False
        self._limit = upper * (1.0 + ROUNDING)
        self._should_continue, self._effort = should_continue, effort
        self._at = labels
        self._kept = [np.arange(n, dtype=np.int64) for n in tables.sizes]
        if allowed is not None:
            self.tables, self._kept = tables.restricted(allowed), list(allowed)
            self._at = _places(allowed, labels, [np.zeros(n) for n in tables.sizes])
        self._messages: dict[Pair, Floats] = {}
        self._multipliers: Floats | None = None  # of gathers that compute hides
        self._points: list[Point] = []
        self._rounds = self.turns = 0
        self._settled = self._proven = self._raises = False  # how far `refine` has come
        self._steps = self._all_steps()

    def begin_again(self, labels: Ints, upper: float, effort: float, raises: bool) -> None:
        """Begins with the labels left, at a partition of no more seconds."""
        self._effort, self._raises, self.finished = effort, raises, False
        self._steps = self._all_steps()
        if upper * (1.0 + ROUNDING) < self._limit:
            self._at = _places(self._kept, labels, [np.zeros(int(k[-1]) + 1) for k in self._kept])
            self._limit = upper * (1.0 + ROUNDING)
            self._rounds = min(self._rounds, 1)
            self.exact = self._settled = self._proven = False

    def refine(self) -> None:
        """Takes the next step: labels are removed until few are, the tables' minimum is bounded,
        and multipliers of gathers are raised until the bound rises no more.
        """
        if next(self._steps, None) is None:
            self.finished = True

    def _all_steps(self) -> Iterator[bool]:
        """Steps of `refine`."""
        while not self._settled:
            self.remove_labels(SWEEPS)
            yield True
        if not self._proven:
            self._points.append(self._prove())
            self._proven = True
            yield True
        stale, best = 0, (self.seconds, self._multipliers)
        for _ in range(TURNS if self._raises else 0):
            if stale == STALE or not self._is_far():
                break
            self._raise_multipliers()
            turn = self.remove_labels(SWEEPS_SOLVED, solve=True)
            if turn is None:
                return
            self._points.append(turn)
            self.turns += 1
            value = turn[1]
            stale = 0 if value > best[0] * (1.0 + LEAST_RAISED) else stale + 1
            best = max(best, (value, self._multipliers), key=lambda each: each[0])
            yield True
        if self._raises and best[1] is not None:
            self._multipliers = best[1]
            self._points.append(self._prove())

    def _is_far(self) -> bool:
        """Further steps may help, and effort is left."""
        return self.seconds < self._limit * (1.0 - NEAR) and self._effort > 0.0

    def _prove(self) -> Point:
        """Bounds the minimum of the tables; returns the labelling of least energy found."""
        proof = prove(
            self._model(),
            self._limit,
            max_entries=self._max_entries,
            messages=self._messages,
            budget=self._budget,
        )
        self.seconds = max(self.seconds, proof.bound)
        self.exact = proof.exact
        return self._point(proof.best.labels, proof.bound)

    def remove_labels(self, sweeps: int, *, solve: bool = False) -> Point | None:
        """Passes messages, and removes labels with a bound above the limit.

        Args:
          solve: find a labelling of least energy, too.

        Returns:
          The labelling of least energy found, with `solve`; None if no labelling is within the
          limit.
        """
        reduction = reduce(self._model())
        model = reduction.model
        order = elimination_order(model)
        tree = TreeBound(model, order.variables, self._messages)
        more = self._budget(model)
        least_gain = LEAST_GAIN_SOLVED if solve else LEAST_GAIN
        for _ in range(sweeps):
            before = tree.value
            if tree.sweep() - before <= least_gain * abs(tree.value) or not more():
                break
        value, found = tree.value, None
        if solve:
            if order.largest <= self._max_entries:
                best = eliminate(model, order)
                value = best.energy
            else:
                best = Labelling(value, tree.decode())
            found = self._point(reduction.lift(best).labels, value)
        self.seconds = max(self.seconds, value)
        self._rounds += 1
        costs = reduction.label_bounds(tree.label_bounds, tree.value)[: len(self._kept)]
        left = [np.flatnonzero(each <= self._limit) for each in costs]
        if not all(map(len, left)):  # no labelling is within the limit
            self.seconds, self.finished, self._settled = self._limit, True, True
            return None
        self._messages = tree.messages(left)
        removed = 1.0 - sum(map(len, left)) / sum(map(len, self._kept))
        few = removed < LEAST_REMOVED and sweeps > 1
        self._settled = few or self._rounds > ROUNDS or self._effort <= 0.0
        if removed:
            self.tables = self.tables.restricted(left)
            self._at = _places(left, self._at, costs)
            self._kept = [kept[x] for kept, x in zip(self._kept, left, strict=True)]
        return found

    def _point(self, places: Ints, value: float) -> Point:
        """A labelling, with the bound of the model."""
        picked = zip(self._kept, places[: len(self._kept)], strict=True)
        labels = np.array([kept[x] for kept, x in picked], dtype=np.int64)
        return labels, value, self._multipliers

    def _raise_multipliers(self) -> None:
        """Chooses multipliers for the next model by the labellings found so far, and the plan's."""
        dual = self.tables.dual(self._at)
        none = np.zeros(dual.count)
        here = self.tables.below(self._at, joint_from=self._stakes)
        points = [(self._at, least_completion(here, self._at))]
        for labels, value, multipliers in self._points:
            costs = [np.zeros(int(k[-1]) + 1) for k in self._kept]
            places = _places(self._kept, labels, costs)
            changed = dual.change(none if multipliers is None else multipliers, places)
            points.append((places, value - changed))
        start = none if self._multipliers is None else self._multipliers
        self._multipliers = dual.raised(start, points)

    def labellings(self) -> list[Ints]:
        """Labellings of least energy, or nearly so, one per model."""
        return [labels for labels, _, _ in self._points]

    def _budget(self, model: PairwiseModel) -> Callable[[], bool]:
        """Function called after each message pass, True while effort is left."""
        entries = sum(table.size for table in model.pairs.values())
        seconds = PAIR_SECONDS * len(model.pairs) + ENTRY_SECONDS * entries

        def more() -> bool:
            self._effort -= seconds
            return self._effort > 0.0 and self._should_continue()

        return more

    @property
    def _stakes(self) -> float:
        """Seconds at stake from which copies have a variable of their own."""
        return JOINT * self._limit if self._rounds > 1 else np.inf

    def _model(self) -> PairwiseModel:
        return self.tables.below(self._at, joint_from=self._stakes, multipliers=self._multipliers)


def _places(left: Sequence[Ints], labels: Ints, costs: Sequence[Floats]) -> Ints:
    """Places of labels among the remaining; the label of least cost in place of a removed one."""
    found = np.zeros(len(labels), dtype=np.int64)
    for i, (k, x, cost) in enumerate(zip(left, labels.tolist(), costs, strict=True)):
        place = int(np.searchsorted(k, x))
        is_left = place < len(k) and k[place] == x
        found[i] = place if is_left else int(np.argmin(cost[k]))
    return found
