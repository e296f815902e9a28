"""Upper bounds of the compute beside a gather, per label of the gathered value.

A gather may start when the source is made, and hides behind the compute between maker and use at
most (`time/overlap.py`). The bound sums the largest seconds of the kernels between; of a kernel
over the tiling of the value or the loops of the user, the largest seconds given the label.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partir_search.ir.core import Region
from partir_search.ir.rule import NONE
from partir_search.simulator.arrays import Floats
from partir_search.simulator.tables.kernels import KernelTables
from partir_search.simulator.tables.uses import Use


class HidingCompute:
    """Largest seconds of compute by stretch of a region and label.

    Attributes:
      places: [kernels] region and position.
    """

    places: list[tuple[int, int]]

    def __init__(
        self, kernels: Sequence[KernelTables], regions: Sequence[Region], sizes: Sequence[int]
    ) -> None:
        """Seconds of kernels.

        Args:
          kernels: those that a gather may run beside.
          regions: in the order of `walk_regions`.
          sizes: [variables] numbers of labels.
        """
        place = {
            op.id: (r, i) for r, region in enumerate(regions) for i, op in enumerate(region.ops)
        }
        seconds = [np.zeros(len(region.ops) + 1) for region in regions]
        saved: dict[tuple[int, int], list[tuple[int, Floats]]] = {}
        self.places = [place[kernel.op] for kernel in kernels]
        for kernel, (region, position) in zip(kernels, self.places, strict=True):
            runs = max(kernel.runs, 1e-30)
            most, along = kernel.most()
            seconds[region][position + 1] += most / runs
            for x, own in along.items():
                less = np.maximum(most - own, 0.0) / runs
                saved.setdefault((region, x), []).append((position, less))
        self._sizes = sizes
        self._upto = [np.cumsum(each) for each in seconds]
        self._saved = {key: _Cumulated(each) for key, each in saved.items()}

    def before(self, use: Use) -> Floats:
        """[labels of the use's scope] most seconds of compute beside a gather of the use."""
        scope = use.table.scope
        if use.table.settles or not (use.given or NONE < use.made < use.position):
            return np.zeros((1,) * len(scope))
        first = 0 if use.given else use.made + 1
        upto = self._upto[use.region]
        whole = float(upto[use.position] - upto[first])
        least = np.full((1,) * len(scope), whole)
        for i, x in enumerate(scope):
            less = self._saved.get((use.region, x))
            if less is not None:
                shape = [-1 if i == j else 1 for j in range(len(scope))]
                own = np.maximum(whole - less.between(first, use.position), 0.0)
                least = np.minimum(least, own.reshape(shape))
        return least


class _Cumulated:
    """Sums of [labels] arrays over ranges of positions."""

    def __init__(self, each: Sequence[tuple[int, Floats]]) -> None:
        ordered = sorted(each, key=lambda pair: pair[0])
        self._positions = np.array([position for position, _ in ordered])
        rows = np.array([row for _, row in ordered])
        self._sums = np.concatenate((np.zeros((1, rows.shape[1])), np.cumsum(rows, axis=0)))

    def between(self, first: int, stop: int) -> Floats:
        """[labels] sum over positions from `first` to `stop`, exclusive."""
        low, high = np.searchsorted(self._positions, (first, stop))
        found: Floats = self._sums[high] - self._sums[low]
        return found
