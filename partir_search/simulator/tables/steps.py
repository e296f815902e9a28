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
from partir_search.simulator.tables.ways import Way, Ways


class StepTable:
    """Steps of all redistributions met on one mesh.

    Attributes:
      steps: by number: the step, tiles of the value before and after, and whether the step is the
        last. Number 0 is for no step.
      read: the redistributions read so far, each once.
      rows: [rows, most steps] distinct sequences of steps, windows apart; 0 for none.
      row_of: [redistributions read] row of the steps.
      copies: [redistributions read] number of the copy's layout; NONE: no copy.
    """

    def __init__(self, mesh: MeshShape, ways: Ways) -> None:
        self._mesh, self._ways = mesh, ways
        self.steps: list[tuple[ReshardStep | None, int, int, bool]] = [(None, 1, 1, False)]
        self._numbers: dict[Hashable, int] = {None: 0}
        self._places: Ints = np.zeros(0, dtype=np.int64)
        self._place_of: dict[Way, int] = {}
        self.read: list[Way] = []
        self._row_of: dict[tuple[int, ...], int] = {}
        self.rows: Ints = np.zeros((0, 1), dtype=np.int64)
        self.row_of: Ints = np.zeros(0, dtype=np.int64)
        self.copies: Ints = np.zeros(0, dtype=np.int64)
        self._tiles: dict[Layout, int] = {}
        self._layouts: dict[Hashable, int] = {}
        self._kinds: tuple[Bools, Bools] = (np.zeros(0, np.bool_), np.zeros(0, np.bool_))

    def places(self, numbers: Ints) -> Ints:
        """Positions in `read` of redistributions by number; reads those of no position yet."""
        more = len(self._ways) - len(self._places)
        if more:
            self._places = np.pad(self._places, (0, more), constant_values=NONE)
        found: Ints = self._places[numbers]
        if np.min(found, initial=0) < 0:
            new = np.unique(numbers[found < 0])
            count, ways = len(self.read), [self._ways[i] for i in new.tolist()]
            self._places[new] = [self._place_of.setdefault(w, len(self._place_of)) for w in ways]
            self.read += list(self._place_of)[count:]
            self._add(self.read[count:])
            found = self._places[numbers]
        return found

    def _add(self, ways: Sequence[Way]) -> None:
        before = len(self._row_of)
        rows = [self._row_of.setdefault(self._of_way(way), len(self._row_of)) for way in ways]
        new = list(self._row_of)[before:]
        count, width = self.rows.shape
        wider = max(width, *map(len, new), 1)
        self.rows = np.pad(self.rows, ((0, len(new)), (0, wider - width)))
        for i, row in enumerate(new, count):
            self.rows[i, : len(row)] = row
        self.row_of = np.concatenate((self.row_of, np.array(rows, dtype=np.int64)))
        copies = [self._copy_of(way) for way in ways]
        self.copies = np.concatenate((self.copies, np.array(copies, dtype=np.int64)))

    def _copy_of(self, way: Way) -> int:
        if way.source == way.target and not way.windows:
            return NONE
        return self._layouts.setdefault((way.target, way.windows), len(self._layouts))

    def _of_way(self, way: Way) -> tuple[int, ...]:
        source, partial, target, keep, _ = way
        steps: tuple[ReshardStep, ...] = ()
        if source != target or partial != keep:
            steps = redistribute(self._mesh, source, partial, target, keep)
        numbers, before = [], self._tiles_of(source)
        for step in steps:
            after, last = self._tiles_of(step.layout), step is steps[-1]
            pairs = step.pairs if isinstance(step, Permute) else None
            # A slice of partly filled rows is copied (`time/collective_cost.py`).
            rows = NONE if step.communicates else self._tiles_of(step.layout[-1:])
            key = (step.kind, step.axes, before, after, last, pairs, rows)
            number = self._numbers.setdefault(key, len(self.steps))
            if number == len(self.steps):
                self.steps.append((step, before, after, last))
            numbers.append(number)
            before = after
        return tuple(numbers)

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
