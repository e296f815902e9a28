"""Steps of redistributions as numbers: steps of equal cost for all values have one number."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Layout
from partir_search.ir.rule import NONE
from partir_search.lowering.diagonals import redistribute
from partir_search.lowering.reshard_steps import AllGather, Permute, Reduction, ReshardStep
from partir_search.simulator.arrays import Bools, Ints
from partir_search.simulator.tables.ways import Way


class StepTable:
    """Steps of all redistributions met on one mesh.

    Attributes:
      steps: by number: the step, tiles of the value before and after, and whether the step is the
        last. Number 0 is for no step.
    """

    def __init__(self, mesh: MeshShape) -> None:
        self._mesh = mesh
        self.steps: list[tuple[ReshardStep | None, int, int, bool]] = [(None, 1, 1, False)]
        self._numbers: dict[Hashable, int] = {None: 0}
        self._of_way: dict[Way, tuple[int, ...]] = {}
        self._tiles: dict[Layout, int] = {}
        self._layouts: dict[Hashable, int] = {}
        self._kinds: tuple[Bools, Bools] = (np.zeros(0, np.bool_), np.zeros(0, np.bool_))

    def of_way(self, way: Way) -> tuple[int, ...]:
        """Numbers of a way's steps, windows apart."""
        found = self._of_way.get(way)
        if found is None:
            source, partial, target, keep, _ = way
            steps: tuple[ReshardStep, ...] = ()
            if source != target or partial != keep:
                steps = redistribute(self._mesh, source, partial, target, keep)
            numbers, before = [], self._tiles_of(source)
            for step in steps:
                after, last = self._tiles_of(step.layout), step is steps[-1]
                pairs = step.pairs if isinstance(step, Permute) else None
                key = (step.kind, step.axes, before, after, last, pairs)
                number = self._numbers.setdefault(key, len(self.steps))
                if number == len(self.steps):
                    self.steps.append((step, before, after, last))
                numbers.append(number)
                before = after
            found = self._of_way[way] = tuple(numbers)
        return found

    def copy_of(self, way: Way) -> int:
        """Number of the layout of the copy made by a way; NONE without a copy."""
        if way.source == way.target and not way.windows:
            return NONE
        return self._layouts.setdefault((way.target, way.windows), len(self._layouts))

    def kinds(self) -> tuple[Bools, Bools]:
        """[steps] True for gathers, and for reductions."""
        if len(self._kinds[0]) != len(self.steps):
            kinds = [step for step, *_ in self.steps]
            gathers = np.array([isinstance(s, AllGather) for s in kinds], dtype=np.bool_)
            reduces = np.array([isinstance(s, Reduction) for s in kinds], dtype=np.bool_)
            self._kinds = gathers, reduces
        return self._kinds

    def _tiles_of(self, layout: Layout) -> int:
        found = self._tiles.get(layout)
        if found is None:
            found = math.prod(self._mesh.sizes[a] for axes in layout for a in axes)
            self._tiles[layout] = found
        return found


class WaySteps:
    """Steps and copies of a list of ways, found at the first reading."""

    def __init__(self, table: StepTable, ways: Sequence[Way]) -> None:
        self._table, self._ways = table, ways
        self._numbers = np.zeros((len(ways), 1), dtype=np.int64)
        self._copies = np.full(len(ways), NONE, dtype=np.int64)
        self._known = np.zeros(len(ways), dtype=np.bool_)

    def of(self, at: Ints) -> tuple[Ints, Ints]:
        """[n, most steps] numbers of the steps of some ways, 0 for none, and [n] their copies."""
        new = at[~self._known[at]]
        if len(new):
            ways = [self._ways[i] for i in new.tolist()]
            rows = [self._table.of_way(way) for way in ways]
            most, width = max(map(len, rows)), self._numbers.shape[1]
            if most > width:
                self._numbers = np.pad(self._numbers, ((0, 0), (0, most - width)))
            for i, row in zip(new.tolist(), rows, strict=True):
                self._numbers[i, : len(row)] = row
            self._copies[new] = [self._table.copy_of(way) for way in ways]
            self._known[new] = True
        return self._numbers[at], self._copies[at]
