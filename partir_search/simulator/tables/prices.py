"""Prices of redistributions: lowered and priced as in a device-local program.

A redistribution is priced when a table reads the price: exact steps along one axis read few.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Hashable, Sequence

import numpy as np

from partir_search.ir.core import Op, Value
from partir_search.ir.mesh import MeshShape
from partir_search.lowering.local_ir import Reshard
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.reshard_steps import AllGather, HaloPermute
from partir_search.simulator.arrays import Bools, Floats, Ints
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.tables.steps import StepTable
from partir_search.simulator.tables.ways import Ways
from partir_search.simulator.tables.window_moves import window_moves
from partir_search.simulator.time.collective_cost import CollectiveCost

Fetches = tuple[tuple[Hashable, float], ...]
"""Blocks of one value from other devices, kept for all uses: source and step, and seconds."""


NO_COPIES: Ints = np.zeros(0, dtype=np.int64)

_WindowCosts = list[tuple[Reshard, CollectiveCost]]


@dataclasses.dataclass(eq=False, slots=True)
class Columns:
    """Prices of n redistributions, seconds of one run each.

    Attributes:
      reduced / moved: [n] seconds of reductions, and of all further collectives but gathers.
      gathers: [steps, n] seconds of each all_gather.
      at_once: [n] the first gather is the first step.
      copied: [n] seconds to move bytes besides.
      copies: [n] number of the layout of the copy, or NONE.
    """

    reduced: Floats
    moved: Floats
    gathers: Floats
    at_once: Bools
    copied: Floats
    copies: Ints

    def picked(self, at: Ints, copies: Ints) -> Columns:
        """Prices at places `at` of any shape, with the numbers of their copies' layouts."""
        return Columns(
            self.reduced[at],
            self.moved[at],
            self.gathers[:, at],
            self.at_once[at],
            self.copied[at],
            copies,
        )

    def part(self, start: int, stop: int, shape: tuple[int, ...]) -> Columns:
        """Prices of a stretch, in a shape."""
        return Columns(
            self.reduced[start:stop].reshape(shape),
            self.moved[start:stop].reshape(shape),
            self.gathers[:, start:stop].reshape(len(self.gathers), *shape),
            self.at_once[start:stop].reshape(shape),
            self.copied[start:stop].reshape(shape),
            self.copies[start:stop].reshape(shape),
        )


_NONE, _NO = np.zeros(0), np.zeros(0, dtype=np.bool_)
NO_PRICES = Columns(_NONE, _NONE, np.zeros((0, 0)), _NO, _NONE, NO_COPIES)


class Prices:
    """Prices of redistributions of one kind of value, by number of the redistribution."""

    def __init__(self, pricer: Pricer, quote: Quote) -> None:
        self._quote, self._pricer = quote, pricer
        self._fetches: dict[int, Fetches] = {}  # by place
        self._priced = np.zeros(0, dtype=np.bool_)
        self._all = NO_PRICES

    def of(self, items: Ints) -> Columns:
        """Prices of redistributions, in the shape of their numbers `items`."""
        places, at = self._read(items)
        return self._all.picked(at, self._pricer.steps.copies[places])

    def of_each(self, tables: Sequence[Ints]) -> list[Columns]:
        """Prices of tables of redistributions, read together."""
        if len(tables) == 1:
            return [self.of(tables[0])]
        every = self.of(np.concatenate([items.ravel() for items in tables]))
        ends = [0, *itertools.accumulate(items.size for items in tables)]
        return [
            every.part(i, j, items.shape)
            for (i, j), items in zip(itertools.pairwise(ends), tables, strict=True)
        ]

    def fetches_of(self, item: int) -> Fetches:
        """Blocks fetched by devices for the windows of one redistribution."""
        return self._fetches[int(self._read(np.array([item], dtype=np.int64))[0][0])]

    @property
    def windows(self) -> bool:
        """Prices of windows alone; by place, and otherwise by distinct steps."""
        return self._quote.windows

    def every(self, items: Ints) -> Columns:
        """Prices of all distinct steps met so far; of windows by place, known at `items` alone."""
        self._read(items)
        left = np.flatnonzero(~self._priced)
        if len(left) and not self.windows:
            self._add(self._pricer.priced(left, self._quote, self._fetches), left)
            self._priced[left] = True
        return self._all

    def _read(self, items: Ints) -> tuple[Ints, Ints]:
        """Places of redistributions among those read, and among the prices.

        Prices are by distinct steps, all read so far at once; of windows by redistribution.
        """
        steps, windows = self._pricer.steps, self._quote.windows
        places = steps.places(items)
        at = places if windows else steps.row_of[places]
        n, before = len(steps.read) if windows else len(steps.rows), len(self._priced)
        if before < n:
            self._priced = np.pad(self._priced, (0, n - before))
        wanted = ~self._priced[at]
        if wanted.any():
            new = np.unique(at[wanted]) if windows else np.flatnonzero(~self._priced)
            self._add(self._pricer.priced(new, self._quote, self._fetches), new)
            self._priced[new] = True
        return places, at

    def _add(self, priced: Columns, at: Ints) -> None:
        found, n = self._all, len(self._priced)
        most = max(len(priced.gathers), len(found.gathers))
        wider = Columns(
            np.zeros(n), np.zeros(n), np.zeros((most, n)), np.zeros(n, np.bool_), np.zeros(n),
            found.copies,
        )  # fmt: skip
        for columns, to in ((found, slice(len(found.reduced))), (priced, at)):
            wider.reduced[to], wider.moved[to] = columns.reduced, columns.moved
            wider.gathers[: len(columns.gathers), to] = columns.gathers
            wider.at_once[to], wider.copied[to] = columns.at_once, columns.copied
        self._all = wider


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Quote:
    """Kind of value whose redistributions are priced, with one case.

    Attributes:
      kind: values of one kind cost the same.
      value / op: one case of the kind; op is None for results.
      settles: the value is moved to where it rests.
      windows: windows alone are taken, once the value is in their layout.
    """

    kind: Hashable
    value: Value
    op: Op | None
    settles: bool
    windows: bool


@dataclasses.dataclass(eq=False, slots=True)
class _Known:
    """Prices of steps for one kind of value: [steps] seconds of collectives and copies; NaN where
    not known yet.
    """

    seconds: Floats
    copied: Floats


class Pricer:
    """Prices on one mesh, cached by kind of value and step.

    Attributes:
      ways: all redistributions met.
      steps: of these.
    """

    def __init__(self, model: CostModel, mesh: MeshShape) -> None:
        self.model, self.mesh = model, mesh
        self.ways = Ways()
        self.steps = StepTable(mesh, self.ways)
        self._costs = model.costs(mesh)
        self._bandwidth = model.machine.attained_hbm_bytes_per_s
        self._prices: dict[Hashable, Prices] = {}
        self._known: dict[Hashable, _Known] = {}

    def prices(self, value: Value, op: Op | None, *, settles: bool, windows: bool) -> Prices:
        """Prices of redistributions.

        Args:
          op: for which the value is moved; None for results.
          settles: the value is moved to where it rests.
          windows: windows alone are taken, once the value is in their layout.
        """
        facts = self.model.facts
        kind: Hashable = (
            value.type.nbytes,
            value.type.itemsize,
            bool(facts.for_dots[value.id]),
            value.id in facts.donated_results,
            op is None,
            op is not None and bool(facts.contracts[op.id]),
            op is not None and bool(facts.writes_whole[op.id]) and value in op.results,
            facts.forked[value.id],
            facts.source_bytes.get(value.id),
            settles,
        )
        if op is not None and (facts.writes_whole[op.id] or facts.forked[value.id]):
            kind = (kind, value.type.shape)
        key: Hashable = kind
        if op is not None and windows:
            rule = self.model.rules[op.id]
            key = (key, value.type.shape, rule.accepts_haloed_tile, bool(facts.elementwise[op.id]))
        found = self._prices.get(key)
        if found is None:
            quote = Quote(kind, value, op, settles, op is not None and windows)
            found = self._prices[key] = Prices(self, quote)
        return found

    def priced(self, at: Ints, quote: Quote, fetches: dict[int, Fetches]) -> Columns:
        """Prices, without copies, by distinct steps; of windows, with `fetches`, by place."""
        if quote.windows:
            return self._windows(at, quote, fetches)
        numbers = self.steps.rows[at]
        known = self._prices_of(numbers, quote)
        gathers, reduces = (kinds[numbers] for kinds in self.steps.kinds())
        gathers &= not quote.settles
        return Columns(
            known.seconds[np.where(reduces, numbers, 0)].sum(axis=1),
            known.seconds[np.where(reduces | gathers, 0, numbers)].sum(axis=1),
            known.seconds[_moved_left(np.where(gathers, numbers, 0))].T,
            gathers[:, 0],
            known.copied[numbers].sum(axis=1),
            NO_COPIES,
        )

    def _prices_of(self, numbers: Ints, quote: Quote) -> _Known:
        """Prices of steps for a kind of value."""
        known, steps = self._known.get(quote.kind), self.steps.steps
        if known is None or len(known.seconds) < len(steps):
            more = np.full(len(steps), np.nan)
            more[0] = 0.0
            wider = _Known(more, more.copy())
            if known is not None:
                wider.seconds[: len(known.seconds)] = known.seconds
                wider.copied[: len(known.copied)] = known.copied
            known = self._known[quote.kind] = wider
        value, points = quote.value, math.prod(quote.value.type.shape)
        for number in np.unique(numbers[np.isnan(known.seconds[numbers])]).tolist():
            step, before, after, last = steps[number]
            assert step is not None
            source = LocalValue(-1, value, (), (), (points // before,))
            target = LocalValue(-1, value, step.layout, step.partial, (points // after,))
            move = Reshard(step, source, target, quote.op, to_home=quote.settles and last)
            cost = self._costs.cost(move)
            known.seconds[number] = cost.seconds
            known.copied[number] = cost.copied / self._bandwidth
        return known

    def _windows(self, at: Ints, quote: Quote, fetches: dict[int, Fetches]) -> Columns:
        """Prices of windows."""
        value, op = quote.value, quote.op
        assert op is not None
        rule = self.model.rules[op.id]
        known: dict[Hashable, _WindowCosts] = {}  # moves do not depend on where a way begins
        each: list[_WindowCosts] = []
        ways = [self.steps.read[i] for i in at.tolist()]
        for way, i in zip(ways, at.tolist(), strict=True):
            found = known.get(way[2:])
            if found is None:
                moves = window_moves(value, op, way, self.mesh, rule)
                found = known[way[2:]] = [(m, self._costs.cost(m)) for m in moves]
            each.append(found)
            fetches[i] = _fetches(found)
        gathers = [[c.seconds for m, c in f if isinstance(m.step, AllGather)] for f in each]
        most = max(map(len, gathers), default=0)
        padded = np.array([[*found, *[0.0] * (most - len(found))] for found in gathers])
        others = [sum(c.seconds for m, c in f if not isinstance(m.step, AllGather)) for f in each]
        # The first move is of the value at rest if that is in the layout already.
        at_once = [
            bool(f) and isinstance(f[0][0].step, AllGather) and way.source == way.target
            for f, way in zip(each, ways, strict=True)
        ]
        return Columns(
            np.zeros(len(at)),
            np.array(others, dtype=np.float64),
            padded.reshape(len(at), most).T,
            np.array(at_once, dtype=np.bool_),
            np.array([sum(c.copied for _, c in found) for found in each]) / self._bandwidth,
            NO_COPIES,
        )


def _fetches(costs: _WindowCosts) -> Fetches:
    return tuple(
        ((m.source.layout, m.source.shape, m.step), cost.seconds)
        for m, cost in costs
        if isinstance(m.step, HaloPermute)
    )


def _moved_left(numbers: Ints) -> Ints:
    """Rows with their zeros at the end, without columns of zeros."""
    order = np.argsort(numbers == 0, axis=1, kind="stable")
    found: Ints = np.take_along_axis(numbers, order, axis=1)
    return found[:, found.any(axis=0)]
