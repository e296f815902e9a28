"""Prices of redistributions: lowered and priced as in a device-local program."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence

import numpy as np

from partir_search.ir.core import Op, Value
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Layout
from partir_search.lowering.diagonals import redistribute
from partir_search.lowering.local_ir import Reshard
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.reshard_steps import (
    AllGather,
    HaloPermute,
    Permute,
    Reduction,
    ReshardStep,
)
from partir_search.simulator.arrays import Bools, Floats, Ints
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.tables.ways import Way
from partir_search.simulator.tables.window_moves import window_moves
from partir_search.simulator.time.collective_cost import CollectiveCost

Fetches = tuple[tuple[Hashable, float], ...]
"""Blocks of one value from other devices, kept for all uses: source and step, and seconds."""


_WindowCosts = list[tuple[Reshard, CollectiveCost]]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Prices:
    """Prices of n redistributions of one value, seconds of one run each.

    Attributes:
      reduced / moved: [n] seconds of collectives that reduce, and of all others but gathers.
      gathers: [steps, n] seconds of each all_gather.
      at_once: [n] the first gather is the first step.
      copied: [n] seconds to move bytes besides.
      fetches: [n] of windows, the blocks that devices fetch.
    """

    reduced: Floats
    moved: Floats
    gathers: Floats
    at_once: Bools
    copied: Floats
    fetches: Sequence[Fetches] = ()


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class _Steps:
    """Steps of n ways: [n, most steps] numbers of steps, 0 for none."""

    reduced: Ints
    moved: Ints
    gathers: Ints
    all: Ints
    at_once: Bools


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
        self._prices: dict[Hashable, tuple[Sequence[Way], Prices]] = {}  # by `id()` of the ways
        self._lists: dict[tuple[int, bool], tuple[Sequence[Way], _Steps]] = {}
        self._of_way: dict[Way, tuple[int, ...]] = {}
        self._numbers: dict[Hashable, int] = {None: 0}
        self._steps: list[tuple[ReshardStep | None, int, int, bool]] = [(None, 1, 1, False)]
        self._known: dict[Hashable, _Known] = {}
        self._tiles: dict[Layout, int] = {}

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
            if op is not None and windows:
                prices = self._windows(value, op, ways)
            else:
                steps = self._steps_of(ways, settles)
                known = self._priced(kind, steps.all, value, op, settles)
                prices = Prices(
                    known.seconds[steps.reduced].sum(axis=1),
                    known.seconds[steps.moved].sum(axis=1),
                    known.seconds[steps.gathers].T,
                    steps.at_once,
                    known.copied[steps.all].sum(axis=1),
                )
            found = self._prices[key] = ways, prices
        return found[1]

    def _steps_of(self, ways: Sequence[Way], settles: bool) -> _Steps:
        found = self._lists.get((id(ways), settles))
        if found is None:
            numbers = _table([self._numbered(way) for way in ways])
            kinds = [step for step, *_ in self._steps]
            gathers = np.array([isinstance(s, AllGather) and not settles for s in kinds])[numbers]
            reduces = np.array([isinstance(s, Reduction) for s in kinds])[numbers]
            first = gathers[:, 0] if numbers.shape[1] else np.zeros(len(ways), dtype=np.bool_)
            steps = _Steps(
                np.where(reduces, numbers, 0),
                np.where(reduces | gathers, 0, numbers),
                _moved_left(np.where(gathers, numbers, 0)),
                numbers,
                first,
            )
            found = self._lists[id(ways), settles] = ways, steps
        return found[1]

    def _numbered(self, way: Way) -> tuple[int, ...]:
        """Numbers of a way's steps; steps that cost the same for all values have one number."""
        found = self._of_way.get(way)
        if found is None:
            source, partial, target, keep, _ = way
            steps: tuple[ReshardStep, ...] = ()
            if source != target or partial != keep:
                steps = redistribute(self.mesh, source, partial, target, keep)
            numbers, before = [], self._tiles_of(source)
            for step in steps:
                after, last = self._tiles_of(step.layout), step is steps[-1]
                pairs = step.pairs if isinstance(step, Permute) else None
                key = (step.kind, step.axes, before, after, last, pairs)
                number = self._numbers.setdefault(key, len(self._steps))
                if number == len(self._steps):
                    self._steps.append((step, before, after, last))
                numbers.append(number)
                before = after
            found = self._of_way[way] = tuple(numbers)
        return found

    def _priced(
        self, kind: Hashable, numbers: Ints, value: Value, op: Op | None, settles: bool
    ) -> _Known:
        """Prices of steps for a kind of value, of which `value` and `op` are one case."""
        known = self._known.get(kind)
        if known is None or len(known.seconds) < len(self._steps):
            more = np.full(len(self._steps), np.nan)
            more[0] = 0.0
            wider = _Known(more, more.copy())
            if known is not None:
                wider.seconds[: len(known.seconds)] = known.seconds
                wider.copied[: len(known.copied)] = known.copied
            known = self._known[kind] = wider
        for number in np.unique(numbers[np.isnan(known.seconds[numbers])]).tolist():
            step, before, after, last = self._steps[number]
            assert step is not None
            points = math.prod(value.type.shape)
            source = LocalValue(-1, value, (), (), (points // before,))
            target = LocalValue(-1, value, step.layout, step.partial, (points // after,))
            move = Reshard(step, source, target, op, to_home=settles and last)
            cost = self._costs.cost(move)
            known.seconds[number] = cost.seconds
            known.copied[number] = cost.copied / self._bandwidth
        return known

    def _windows(self, value: Value, op: Op, ways: Sequence[Way]) -> Prices:
        """Prices of windows."""
        rule = self.model.rules[op.id]
        known: dict[Hashable, _WindowCosts] = {}  # moves do not depend on where a way begins
        each: list[_WindowCosts] = []
        for way in ways:
            found = known.get(way[2:])
            if found is None:
                moves = window_moves(value, op, way, self.mesh, rule)
                found = known[way[2:]] = [(m, self._costs.cost(m)) for m in moves]
            each.append(found)
        gathers = [[c.seconds for m, c in f if isinstance(m.step, AllGather)] for f in each]
        most = max(map(len, gathers), default=0)
        padded = np.array([[*found, *[0.0] * (most - len(found))] for found in gathers])
        others = [sum(c.seconds for m, c in f if not isinstance(m.step, AllGather)) for f in each]
        # The first move is of the value at rest if that is in the layout already.
        at_once = [
            bool(f) and isinstance(f[0][0].step, AllGather) and way.source == way.target
            for f, way in zip(each, ways, strict=True)
        ]
        return Prices(
            np.zeros(len(ways)),
            np.array(others, dtype=np.float64),
            padded.reshape(len(ways), most).T,
            np.array(at_once, dtype=np.bool_),
            np.array([sum(c.copied for _, c in found) for found in each]) / self._bandwidth,
            [_fetches(found) for found in each],
        )

    def _tiles_of(self, layout: Layout) -> int:
        found = self._tiles.get(layout)
        if found is None:
            found = math.prod(self.mesh.sizes[a] for axes in layout for a in axes)
            self._tiles[layout] = found
        return found


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


def _table(rows: Sequence[Sequence[int]]) -> Ints:
    """Rows of several lengths as an array, filled with zeros."""
    found = np.zeros((len(rows), max(map(len, rows), default=0)), dtype=np.int64)
    for i, row in enumerate(rows):
        found[i, : len(row)] = row
    return found
