"""Walk of a program's moves at one labelling: copies that uses share, and seconds that compute
hides (`lowering/placing.py`, `time/overlap.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

import numpy as np

from partir_search.ir.core import Region, walk_regions
from partir_search.ir.rule import NONE
from partir_search.simulator.arrays import Bools, Floats, Ints
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.tables.prices import Columns
from partir_search.simulator.tables.uses import Use
from partir_search.simulator.time.early_gathers import EarlyGather, EarlyGathers
from partir_search.simulator.time.latency_hiding import InFlightCollective, OverlapWindow


@dataclasses.dataclass(eq=False, slots=True)
class UseAt:
    """A use at a labelling.

    Attributes:
      copy: number of the copy that the use reads; NONE: the value where it rests.
      moves: the use makes the copy.
      total / exposed: seconds per step of collectives, and of those that nothing hides.
      early: seconds of compute before the use in which a gather may run, on average over layers.
      idle: deferred dots were idle when the collective began.
    """

    copy: int = NONE
    moves: bool = False
    total: float = 0.0
    exposed: float = 0.0
    early: float = 0.0
    idle: bool = False


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Walk:
    """All uses at a labelling.

    Attributes:
      copy / moves / total / exposed / early / idle: [uses] as of `UseAt`.
      layout: [uses] number of the layout of the copy read, or NONE.
      sharing: [copies] how many uses read each.
      spent_idle: by region, whether its deferred dots were all beside collectives.
    """

    copy: Ints
    moves: Bools
    total: Floats
    exposed: Floats
    early: Floats
    idle: Bools
    layout: Ints
    sharing: Ints
    spent_idle: Sequence[bool]


def walk(
    model: CostModel, uses: Sequence[Use], prices: Columns, labels: Ints, seconds_of: Floats
) -> Walk:
    """Walks over the moves of all regions.

    Args:
      prices: [uses] at the labelling.
      seconds_of: [ops] seconds of one run of each op.
    """
    walker = _Walker(model, uses, prices, labels)
    regions = [*walk_regions(model.module.body)]
    trips = trips_of(model)
    spent_idle = [
        walker.region(number, region, trips[region], seconds_of)
        for number, region in enumerate(regions)
    ]
    found = walker.found
    return Walk(
        np.array([each.copy for each in found], dtype=np.int64),
        np.array([each.moves for each in found], dtype=np.bool_),
        np.array([each.total for each in found], dtype=np.float64),
        np.array([each.exposed for each in found], dtype=np.float64),
        np.array([each.early for each in found], dtype=np.float64),
        np.array([each.idle for each in found], dtype=np.bool_),
        prices.copies,
        np.array(walker.sharing, dtype=np.int64),
        spent_idle,
    )


def trips_of(model: CostModel) -> dict[Region, float]:
    """Runs of each region in a step."""
    found: dict[Region, float] = {}

    def visit(region: Region, trips: float) -> None:
        found[region] = trips
        for op in region.ops:
            counts = model.rules[op.id].data_flow.trip_counts
            for inner, n in zip(op.regions, counts, strict=True):
                visit(inner, trips * n)

    visit(model.module.body, 1.0)
    return found


class _Walker:
    """Uses so far."""

    def __init__(
        self, model: CostModel, uses: Sequence[Use], prices: Columns, labels: Ints
    ) -> None:
        self._model, self._uses, self._labels = model, uses, labels.tolist()
        self._traits = model.machine.traits
        settles = np.array([use.table.settles for use in uses], dtype=np.bool_)
        seconds = prices.reduced + prices.moved + prices.gathers.sum(axis=0)
        self._moves = np.where(settles, seconds > 0.0, prices.copies >= 0).tolist()
        self._copies = prices.copies.tolist()
        self._prices = [prices.reduced.tolist(), prices.moved.tolist()]
        self._gathers, self._at_once = prices.gathers.T.tolist(), prices.at_once.tolist()
        self.found = [UseAt() for _ in uses]
        self.sharing: list[int] = []
        self._blocks: set[Hashable] = set()  # fetched so far
        self._by_region: dict[int, list[int]] = {}
        for i, use in enumerate(uses):
            self._by_region.setdefault(use.region, []).append(i)

    def region(self, number: int, region: Region, trips: float, seconds_of: Floats) -> bool:
        """Walks over one region; tells whether the idle seconds of its deferred dots are spent."""
        members = np.array([op.id for op in region.ops], dtype=np.int64)
        seconds = seconds_of[members]
        hides = self._model.time.hides_gathers[members]
        spent = [0.0, *np.cumsum(np.where(hides, seconds, 0.0)).tolist()]
        order = self._model.time.orders[region]
        gathers = _Gathers(EarlyGathers(spent, order), trips * order.outside)
        free = self._model.time.deferred_runs[members]
        freed = [0.0, *np.cumsum(seconds * free * trips).tolist()] if free.any() else []
        last = int(np.flatnonzero(free)[-1]) + 1 if freed else 0
        window, begun = OverlapWindow(), list[tuple[UseAt, InFlightCollective]]()
        copies: dict[tuple[int, int], tuple[int, int, bool]] = {}
        free_slots, seen = list[tuple[UseAt, EarlyGather]](), 0
        for i in self._by_region.get(number, ()):
            use, at = self._uses[i], self.found[i]
            if use.position != seen and freed:
                window.work(freed[use.position] - freed[seen])
                if use.position > last:
                    window.end()
            seen = use.position
            if not use.table.settles and self._starts_early(use, 0):
                free_slots.append((at, gathers.begin(use, 0.0)))
            at.idle = window.idle > 0.0
            if not self._moves[i]:
                continue
            self._copy(i, copies)
            if at.moves:
                self._move(i, gathers, window, begun)
        if freed:
            window.work(freed[-1] - freed[seen])
            window.end()
        for at, started in begun:
            at.exposed += started.exposed
        gathers.early.end()
        for at, gather, times in gathers.begun:
            at.exposed += gather.exposed * times
            at.early += gather.hidden
        for at, gather in free_slots:  # gathers of all layers share what is left
            at.early = min(gather.early, gather.left + at.early)
        return bool(freed) and window.idle <= 0.0

    def _starts_early(self, use: Use, number: int) -> bool:
        """A gather of a use may start before the use.

        Args:
          number: of the gather among the gathers of the move.
        """
        start = self._traits.async_all_gather
        first = use.argument and number == 0
        return start == "since_source" or (start == "arguments" and first)

    def _copy(self, i: int, copies: dict[tuple[int, int], tuple[int, int, bool]]) -> None:
        """Finds the copy that a use reads, or has the use make one."""
        use, at, layout = self._uses[i], self.found[i], self._copies[i]
        table = use.table
        if table.settles:
            at.moves = True
            return
        known = copies.get((table.value, layout))
        near = self._traits.regather_distance_ops
        if known and known[2] == use.backward and use.position - known[1] <= near:
            at.copy = known[0]
        else:
            at.copy, at.moves = len(self.sharing), True
            self.sharing.append(0)
        self.sharing[at.copy] += 1
        copies[table.value, layout] = at.copy, use.position, use.backward

    def _move(
        self,
        i: int,
        gathers: _Gathers,
        window: OverlapWindow,
        begun: list[tuple[UseAt, InFlightCollective]],
    ) -> None:
        """Adds the collectives of a move."""
        use, at, traits = self._uses[i], self.found[i], self._traits
        table = use.table
        op = self._model.module.ops[table.op] if table.op != NONE else None
        reduced, moved = (seconds[i] for seconds in self._prices)
        waiting = reduced * table.reduces + moved * table.times
        waiting -= self._known_blocks(use)
        for k, seconds in enumerate(self._gathers[i]):
            if not seconds:
                continue
            early = self._starts_early(use, k)
            if traits.async_all_gather == "arguments":
                early = early and self._at_once[i]
            if not early:
                waiting += seconds * table.times
                continue
            at.total += seconds * table.times
            gathers.begun.append((at, gathers.begin(use, seconds), table.times))
        at.total += waiting
        if waiting and traits.defers_weight_gradients:
            deferrable = table.value in self._model.facts.off_critical_path
            layers = op.count if op and op.backward else 1
            started = InFlightCollective("", "", waiting, waiting, op, NONE)
            window.begin(started, deferrable=deferrable, layers=layers)
            begun.append((at, started))
        else:
            at.exposed += waiting

    def _known_blocks(self, use: Use) -> float:
        """Seconds per step of blocks that earlier uses of a region have fetched."""
        table, saved = use.table, 0.0
        if not table.windows:
            return saved
        for block, seconds in table.fetches(self._labels):
            key = use.region, table.value, block
            saved += seconds * table.times if key in self._blocks else 0.0
            self._blocks.add(key)
        return saved


@dataclasses.dataclass(slots=True)
class _Gathers:
    """Gathers of a region that start before their uses.

    Attributes:
      runs: of the region in a step.
      begun: with the use, and executions in a step.
    """

    early: EarlyGathers
    runs: float
    begun: list[tuple[UseAt, EarlyGather, float]] = dataclasses.field(default_factory=list)

    def begin(self, use: Use, seconds: float) -> EarlyGather:
        """Begins a gather of a use."""
        at, user = use.position, use.user
        repeats = use.table.times / self.runs if self.runs else 1.0  # a loop may have no iterations
        made: int | None = use.made
        if use.table.settles or use.given:
            made = NONE if use.table.settles else None
        return self.early.begin(at, user, seconds, made, repeats)
