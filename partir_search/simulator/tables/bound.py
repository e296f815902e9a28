"""Lower bound of the seconds of all partitions, with removal of labels.

A label with a bound of its own above the seconds of a known plan is in no faster partition. Without
these labels less compute can hide a gather and fewer uses can share a copy: the tables rise, and
more labels are removed. Each order of the mesh's axes has tables and a bound; orders that exchange
like axes have the same. The least bound holds for all partitions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from partir_search.exact.pairwise import Floats, Pair, PairwiseModel
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
MAX_ENTRIES = 10_000_000  # of one table of elimination
EFFORT = 1.0  # nominal seconds of message passes
PAIR_SECONDS, ENTRY_SECONDS = 1.4e-5, 2.5e-8  # of a pass, nominal: per table, and per entry


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Bound:
    """Lower bound of seconds.

    Attributes:
      seconds: no partition takes fewer seconds, by the simulator.
      exact: each order's bound is the minimum of the order's tables, or above the known seconds.
      labels: [variables] labelling of least energy found.
      order: axes' order of the tables of `labels`.
      upper: seconds of the known partition; no fewer than `seconds`.
      finished: False if ended by `promising`: then `labels` are of the known partition.
      started: state of each order, for `known` of `bound_below`.
    """

    seconds: float
    exact: bool
    labels: Ints
    order: tuple[int, ...]
    upper: float
    finished: bool
    started: Sequence[_OrderBound] = dataclasses.field(repr=False)


def bound_below(
    tables: CostTables,
    partition: Partition,
    upper: float,
    *,
    allowed: Sequence[Ints] | None = None,
    known: Bound | None = None,
    promising: float = np.inf,
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
      max_entries: limit of a table of exact elimination.
      effort: limit of message passes in nominal seconds, the same on every machine.
      should_continue: called between passes; False ends the computation after one pass per order.
    """
    labels = tables.labels_of(partition)
    if known is not None:
        started = known.started
        for each in started:
            each.begin_again(labels, upper, effort / len(started))
    else:
        orders = tables.orders_from(partition.order) if allowed is None else tables.orders
        started = [
            _OrderBound(
                tables.ordered(order), labels, upper, allowed, effort / len(orders), should_continue
            )
            for order in orders
        ]
        for each in started:
            each.remove_labels(1)
    finished = True
    while should_continue():
        lowest = min(started, key=lambda each: each.seconds)
        if lowest.finished:
            break
        lowest.refine(max_entries)
        if lowest.seconds < upper * (1.0 - promising):
            finished = False
            break
    lowest = min(started, key=lambda each: each.seconds)
    exact = all(each.exact or each.seconds >= upper for each in started)
    best = lowest.best if finished else labels
    seconds = min(lowest.seconds, upper)
    return Bound(seconds, exact, best, lowest.tables.order, upper, finished, started)


class _OrderBound:
    """Bound of one order of axes, refined step by step.

    Attributes:
      tables: of the remaining labels.
      seconds: the bound.
      best: [variables] labelling of least energy found.
      finished / exact: no step is left; the bound is the tables' minimum.
    """

    def __init__(
        self,
        tables: OrderedTables,
        labels: Ints,
        upper: float,
        allowed: Sequence[Ints] | None,
        effort: float,
        should_continue: Callable[[], bool],
    ) -> None:
        self.tables, self.seconds, self.best = tables, -np.inf, labels
        self.finished = self.exact = False
        self._limit = upper * (1.0 + ROUNDING)
        self._should_continue, self._effort = should_continue, effort
        self._at = labels
        self._kept = [np.arange(n, dtype=np.int64) for n in tables.sizes]
        if allowed is not None:
            self.tables, self._kept = tables.restricted(allowed), list(allowed)
            self._at = _places(allowed, labels, [np.zeros(n) for n in tables.sizes])
        self._messages: dict[Pair, Floats] = {}
        self._rounds = 0
        self._settled = False  # removal of labels has ended

    def begin_again(self, labels: Ints, upper: float, effort: float) -> None:
        """Begins with the labels left, at a partition of fewer seconds."""
        self._at = _places(self._kept, labels, [np.zeros(int(k[-1]) + 1) for k in self._kept])
        self._limit = upper * (1.0 + ROUNDING)
        self._effort, self._rounds, self.best = effort, min(self._rounds, 1), labels
        self.finished = self.exact = self._settled = False

    def refine(self, max_entries: int) -> None:
        """Removes labels once more or, if that has ended, computes the tables' minimum."""
        if not self._settled:
            self.remove_labels(SWEEPS)
            return
        model = self._model()
        proof = prove(
            model,
            self._limit,
            max_entries=max_entries,
            messages=self._messages,
            should_continue=self._budget(model),
        )
        self.seconds = max(self.seconds, proof.bound)
        self.exact, self.finished = proof.exact, True
        picked = zip(self._kept, proof.best.labels[: len(self._kept)], strict=True)
        self.best = np.array([kept[x] for kept, x in picked], dtype=np.int64)

    def remove_labels(self, sweeps: int) -> None:
        """Passes messages, and removes labels with a bound above the limit."""
        model = self._model()
        reduction = reduce(model)
        tree = TreeBound(reduction.model, messages=self._messages)
        more = self._budget(reduction.model)
        for _ in range(sweeps):
            before = tree.value
            if tree.sweep() - before <= LEAST_GAIN * abs(tree.value) or not more():
                break
        self.seconds = max(self.seconds, tree.value)
        self._rounds += 1
        costs = reduction.label_bounds(tree.label_bounds, tree.value)[: len(self._kept)]
        left = [np.flatnonzero(each <= self._limit) for each in costs]
        if not all(map(len, left)):  # no labelling is within the limit
            self.seconds, self.finished, self._settled = self._limit, True, True
            return
        self._messages = tree.messages(left)
        removed = 1.0 - sum(map(len, left)) / sum(map(len, self._kept))
        few = removed < LEAST_REMOVED and sweeps > 1
        self._settled = few or self._rounds > ROUNDS or self._effort <= 0.0
        if removed:
            self.tables = self.tables.restricted(left)
            self._at = _places(left, self._at, costs)
            self._kept = [kept[x] for kept, x in zip(self._kept, left, strict=True)]

    def _budget(self, model: PairwiseModel) -> Callable[[], bool]:
        """Function called after each message pass, True while effort is left."""
        entries = sum(table.size for table in model.pairs.values())
        seconds = PAIR_SECONDS * len(model.pairs) + ENTRY_SECONDS * entries

        def more() -> bool:
            self._effort -= seconds
            return self._effort > 0.0 and self._should_continue()

        return more

    def _model(self) -> PairwiseModel:
        stakes = JOINT * self._limit if self._rounds > 1 else np.inf
        return self.tables.below(self._at, joint_from=stakes)


def _places(left: Sequence[Ints], labels: Ints, costs: Sequence[Floats]) -> Ints:
    """Places of labels among the remaining; the label of least cost in place of a removed one."""
    found = np.zeros(len(labels), dtype=np.int64)
    for i, (k, x, cost) in enumerate(zip(left, labels.tolist(), costs, strict=True)):
        place = int(np.searchsorted(k, x))
        is_left = place < len(k) and k[place] == x
        found[i] = place if is_left else int(np.argmin(cost[k]))
    return found
