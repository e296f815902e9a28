"""Upper bounds of the compute beside a gather, per label of the gathered value.

A gather may start when the source is made, and hides behind the compute between maker and use at
most (`time/early_gathers.py`). The bound sums the largest seconds of the kernels between; of a
kernel over the tiling of the value or the loops of the user, the largest seconds given the label.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from partir_search.ir.core import Region
from partir_search.ir.rule import NONE
from partir_search.passes.fold.run_order import RunOrder
from partir_search.simulator.arrays import Floats
from partir_search.simulator.tables.kernels import KernelTables
from partir_search.simulator.tables.uses import Use
from partir_search.simulator.time.compute_between import (
    Run,
    Sums,
    before_last,
    runs_of,
    since_begin,
    since_made,
)
from partir_search.simulator.time.early_gathers import ROUNDING


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Before:
    """Compute beside a gather, over the scope of the use.

    Attributes:
      shares: of the runs in all runs of the use, by kind of runs; a first and later layers differ.
      most: most seconds, by kind of runs.
    """

    shares: Sequence[float]
    most: Sequence[Floats]


class HidingCompute:
    """Largest seconds of compute by stretch of a region and label."""

    def __init__(
        self,
        kernels: Sequence[KernelTables],
        regions: Sequence[Region],
        orders: Mapping[Region, RunOrder],
        trips: Mapping[Region, float],
    ) -> None:
        """Seconds of kernels.

        Args:
          kernels: those that a gather may run beside.
          regions: in the order of `walk_regions`.
          orders: by region, the order in which the original runs the ops.
          trips: runs of each region in a step, of one layer of the op around the region.
        """
        place = {
            op.id: (r, i) for r, region in enumerate(regions) for i, op in enumerate(region.ops)
        }
        self._orders = [orders[region] for region in regions]
        self._runs = [trips[r] * o.outside for r, o in zip(regions, self._orders, strict=True)]
        self._kernels = len(kernels)
        self._known: dict[int, Sums] = {}
        whole: dict[int, list[tuple[int, Any]]] = {}
        saved: dict[tuple[int, int], list[tuple[int, Any]]] = {}
        self._own: dict[int, list[tuple[int, Any]]] = {}
        for k, kernel in enumerate(kernels):
            region, position = place[kernel.op]
            runs = max(kernel.runs, 1e-30)
            most, along = kernel.most()
            whole.setdefault(region, []).append((position, np.array([most / runs])))
            own = np.zeros(len(kernels))
            own[k] = 1.0 / runs
            self._own.setdefault(region, []).append((position, own))
            for x, seconds in along.items():
                less = np.maximum(most - seconds, 0.0) / runs
                saved.setdefault((region, x), []).append((position, less))
        self._upto = {r: _sums(each, self._orders[r]) for r, each in whole.items()}
        self._saved = {key: _sums(each, self._orders[key[0]]) for key, each in saved.items()}

    def kernels_before(self, use: Use) -> Floats:
        """[kernels] share of each kernel's seconds in a step that may be beside gathers of a use.

        The gathers of all layers hide no more than the sum of the shares.
        """
        found: Floats = np.zeros(self._kernels)
        if use.region in self._own and _starts_early(use):
            for share, seconds in self._compute(use, self._shares(use.region)):
                found = found + use.table.times * share * seconds
        return found

    def last_run(self, use: Use) -> Run:
        """Last run of a use in its region."""
        *_, found = runs_of(self._orders[use.region], use.position, use.user)
        return found

    def kernels_upto(self, region: int, run: Run) -> Floats:
        """[kernels] share of each kernel's seconds in a step before the last layer of a run."""
        if region not in self._own:
            return np.zeros(self._kernels)
        found: Floats = self._runs[region] * before_last(
            self._orders[region], self._shares(region), run
        )
        return found

    def _shares(self, region: int) -> Sums:
        found = self._known.get(region)
        if found is None:
            found = self._known[region] = _sums(self._own[region], self._orders[region])
        return found

    def _compute(self, use: Use, sums: Sums) -> list[tuple[float, Any]]:
        """Compute beside a gather of a use, by kind of runs with the share in all runs."""
        order = self._orders[use.region]
        runs = list(runs_of(order, use.position, use.user))
        times = sum(run.layers for run in runs)
        repeats = use.table.times / max(self._runs[use.region], 1e-30)
        found: list[tuple[float, Any]] = []
        for run in runs:
            if use.given:  # gathers of one layer have equal shares
                first, later = since_begin(order, sums, run)
                first, later = (each * (times / max(repeats, ROUNDING)) for each in (first, later))
            else:
                first, later = since_made(order, sums, use.made, run, use.user)
            found.append((1.0 / times, first))
            if run.layers > 1:
                found.append(((run.layers - 1) / times, later))
        return found

    def before(self, use: Use) -> Before:
        """Most seconds of compute beside a gather of the use, over the use's scope."""
        scope, upto = use.table.scope, self._upto.get(use.region)
        shape = (1,) * len(scope)
        if upto is None or not _starts_early(use):
            return Before([1.0], [np.zeros(shape)])
        whole = self._compute(use, upto)
        found = [np.full(shape, float(each[0])) for _, each in whole]
        for i, x in enumerate(scope):
            less = self._saved.get((use.region, x))
            if less is None:
                continue
            along = [-1 if i == j else 1 for j in range(len(scope))]
            for n, ((_, most), (_, part)) in enumerate(
                zip(whole, self._compute(use, less), strict=True)
            ):
                own = np.maximum(most - part, 0.0).reshape(along)
                found[n] = np.minimum(found[n], own)
        return Before([share for share, _ in whole], found)


def _starts_early(use: Use) -> bool:
    """A gather of the use may start before the use."""
    return not use.table.settles and (use.given or use.made != NONE)


def _sums(each: Sequence[tuple[int, Any]], order: RunOrder) -> Sums:
    """Sums of [labels] arrays at positions, of one layer and of all layers."""
    rows = [(entry, row) for position, row in each for entry in order.entries[position]]
    one = _Cumulated(rows)
    if all(stretch.layers == 1 for stretch in order.stretches):
        return Sums(one, one)
    layers = (order.stretches[order.stretch_at(entry)].layers for entry, _ in rows)
    return Sums(one, _Cumulated([(e, row * n) for (e, row), n in zip(rows, layers, strict=True)]))


class _Cumulated:
    """Sums of arrays at entries of a run order, before each entry."""

    def __init__(self, each: Sequence[tuple[int, Any]]) -> None:
        ordered = sorted(each, key=lambda pair: pair[0])
        self._entries = [entry for entry, _ in ordered]
        rows = np.array([row for _, row in ordered])
        self._sums = np.concatenate((np.zeros((1, rows.shape[1])), np.cumsum(rows, axis=0)))

    def __getitem__(self, stop: int) -> Floats:
        """[labels] sum over entries before `stop`."""
        found: Floats = self._sums[bisect.bisect_left(self._entries, stop)]
        return found
