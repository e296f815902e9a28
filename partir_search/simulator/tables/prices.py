"""Prices of redistributions: lowered and priced as in a device-local program.

A way is priced when a table reads the price: exact steps along one axis read few of all ways.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from partir_search.ir.core import Op, Value
from partir_search.ir.mesh import MeshShape
from partir_search.ir.rule import NONE
from partir_search.lowering.local_ir import Reshard
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.reshard_steps import AllGather, HaloPermute
from partir_search.simulator.arrays import Bools, Floats, Ints
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.tables.steps import StepTable, WaySteps
from partir_search.simulator.tables.ways import Way
from partir_search.simulator.tables.window_moves import window_moves
from partir_search.simulator.time.collective_cost import CollectiveCost

Fetches = tuple[tuple[Hashable, float], ...]
"""Blocks of one value from other devices, kept for all uses: source and step, and seconds."""


_WindowCosts = list[tuple[Reshard, CollectiveCost]]


@dataclasses.dataclass(eq=False, slots=True)
class Columns:
    """Prices of n ways, seconds of one run each.

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


class Price(NamedTuple):
    """Prices of one way; see `Columns`."""

    reduced: float
    moved: float
    gathers: tuple[float, ...]
    at_once: bool
    copied: float
    copy: int


class Prices:
    """Prices of the redistributions of one kind of value by a list of ways.

    Attributes:
      ways: the list.
      fetches: [ways] blocks fetched by devices for windows; () until priced.
    """

    def __init__(self, pricer: Pricer, ways: Sequence[Way], quote: Quote) -> None:
        n = len(ways)
        self.ways, self._quote, self._pricer = ways, quote, pricer
        self.fetches: list[Fetches] = [()] * n if quote.windows else []
        self._priced, self._one = np.zeros(n, dtype=np.bool_), dict[int, Price]()
        zeros = (np.zeros(n) for _ in range(3))
        self._all = Columns(
            next(zeros), next(zeros), np.zeros((0, n)), self._priced.copy(), next(zeros),
            np.full(n, NONE, dtype=np.int64),
        )  # fmt: skip

    def of(self, items: Ints) -> Columns:
        """Prices of ways, in the shape of their numbers `items`."""
        if not self._priced.all():
            wanted = np.zeros(len(self._priced), dtype=np.bool_)
            wanted[items] = True
            new = np.flatnonzero(wanted & ~self._priced)
            if len(new):
                self._price(new)
                self._priced[new] = True
        found = self._all
        return Columns(
            found.reduced[items],
            found.moved[items],
            found.gathers[:, items],
            found.at_once[items],
            found.copied[items],
            found.copies[items],
        )

    def one(self, item: int) -> Price:
        """Prices of one way."""
        found = self._one.get(item)
        if found is None:
            row = self.of(np.array([item], dtype=np.int64))
            found = self._one[item] = Price(
                float(row.reduced[0]),
                float(row.moved[0]),
                tuple(row.gathers[:, 0].tolist()),
                bool(row.at_once[0]),
                float(row.copied[0]),
                int(row.copies[0]),
            )
        return found

    def _price(self, new: Ints) -> None:
        priced, found = self._pricer.priced(self.ways, new, self._quote, self.fetches), self._all
        found.reduced[new], found.moved[new] = priced.reduced, priced.moved
        found.at_once[new], found.copied[new] = priced.at_once, priced.copied
        found.copies[new] = priced.copies
        steps = len(priced.gathers)
        if steps > len(found.gathers):
            found.gathers = np.pad(found.gathers, ((0, steps - len(found.gathers)), (0, 0)))
        found.gathers[:steps, new] = priced.gathers


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
    """Prices on one mesh, cached by kind of value and step."""

    def __init__(self, model: CostModel, mesh: MeshShape) -> None:
        self.model, self.mesh = model, mesh
        self._costs = model.costs(mesh)
        self._bandwidth = model.machine.attained_hbm_bytes_per_s
        self._prices: dict[Hashable, Prices] = {}  # by `id()` of the ways
        self._steps: dict[int, tuple[Sequence[Way], WaySteps]] = {}
        self._table = StepTable(mesh)
        self._known: dict[Hashable, _Known] = {}

    def prices(
        self, value: Value, op: Op | None, ways: Sequence[Way], *, settles: bool, windows: bool
    ) -> Prices:
        """Prices of redistributions.

        Args:
          op: for which the value is moved; None for results.
          ways: a list that is the same object whenever the ways are the same.
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
            settles,
        )
        if op is not None and (facts.writes_whole[op.id] or facts.forked[value.id]):
            kind = (kind, value.type.shape)
        key: Hashable = (id(ways), kind)
        if op is not None and windows:
            rule = self.model.rules[op.id]
            key = (key, value.type.shape, rule.accepts_haloed_tile, bool(facts.elementwise[op.id]))
        found = self._prices.get(key)
        if found is None:
            quote = Quote(kind, value, op, settles, op is not None and windows)
            found = self._prices[key] = Prices(self, ways, quote)
        return found

    def priced(
        self, ways: Sequence[Way], at: Ints, quote: Quote, fetches: list[Fetches]
    ) -> Columns:
        """Prices of the ways numbered `at`; fetches of windows are written to `fetches`."""
        numbers, copies = self._steps_of(ways).of(at)
        if quote.windows:
            return self._windows(ways, at, copies, quote, fetches)
        known = self._prices_of(numbers, quote)
        gathers, reduces = (kinds[numbers] for kinds in self._table.kinds())
        gathers &= not quote.settles
        return Columns(
            known.seconds[np.where(reduces, numbers, 0)].sum(axis=1),
            known.seconds[np.where(reduces | gathers, 0, numbers)].sum(axis=1),
            known.seconds[_moved_left(np.where(gathers, numbers, 0))].T,
            gathers[:, 0],
            known.copied[numbers].sum(axis=1),
            copies,
        )

    def _steps_of(self, ways: Sequence[Way]) -> WaySteps:
        found = self._steps.get(id(ways))
        if found is None:
            found = self._steps[id(ways)] = ways, WaySteps(self._table, ways)
        return found[1]

    def _prices_of(self, numbers: Ints, quote: Quote) -> _Known:
        """Prices of steps for a kind of value."""
        known, steps = self._known.get(quote.kind), self._table.steps
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

    def _windows(
        self,
        ways: Sequence[Way],
        at: Ints,
        copies: Ints,
        quote: Quote,
        fetches: list[Fetches],
    ) -> Columns:
        """Prices of windows."""
        value, op = quote.value, quote.op
        assert op is not None
        rule = self.model.rules[op.id]
        known: dict[Hashable, _WindowCosts] = {}  # moves do not depend on where a way begins
        each: list[_WindowCosts] = []
        for i in at.tolist():
            way = ways[i]
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
            bool(f) and isinstance(f[0][0].step, AllGather) and ways[i].source == ways[i].target
            for f, i in zip(each, at.tolist(), strict=True)
        ]
        return Columns(
            np.zeros(len(at)),
            np.array(others, dtype=np.float64),
            padded.reshape(len(at), most).T,
            np.array(at_once, dtype=np.bool_),
            np.array([sum(c.copied for _, c in found) for found in each]) / self._bandwidth,
            copies,
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
