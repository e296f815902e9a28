"""Compute beside gathers as costs: gathers are exposed by at least their seconds less the compute.

A gather of s seconds hides behind h seconds of compute, and is exposed for `s - h`. Label by label,
`HidingCompute` bounds h by `most`; the gather is exposed for at least

    max(0, s - most) + m (min(s, most) - h)

with any m between 0 and 1. The compute of a step limits hidden seconds:

- h is at most the compute between the gather's start and use, in all layers;
- all gathers up to a position hide no more than all compute up to the position.

With a multiplier per limit, h becomes the kernels' own seconds: a kernel beside gathers costs less
by the multipliers. This is a Lagrangian, a bound for all multipliers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from partir_search.ir.rule import NONE
from partir_search.simulator.arrays import Floats, Ints
from partir_search.simulator.tables.hiding import HidingCompute
from partir_search.simulator.tables.prices import Columns
from partir_search.simulator.tables.uses import Use

PREFIXES = 24  # positions of a region, at most, up to which all gathers have a limit
STEPS = 200  # of the ascent
FIRST_STEP = 0.3  # of a multiplier
LAST_STEP = 0.003


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class _Sparse:
    """Entries of a matrix that are not 0.

    Of these matrices less than a tenth is not 0. Threads of a dense product (BLAS) also cost up to
    forty times the product.
    """

    shape: tuple[int, int]
    rows: Ints
    columns: Ints
    entries: Floats

    @classmethod
    def of(cls, dense: Floats) -> _Sparse:
        rows, columns = np.nonzero(dense)
        return cls((dense.shape[0], dense.shape[1]), rows, columns, dense[rows, columns])

    def times(self, column: Floats) -> Floats:
        """Product with a column vector."""
        each = self.entries * column[self.columns]
        return np.bincount(self.rows, each, self.shape[0]).astype(np.float64, copy=False)

    def left_times(self, row: Floats) -> Floats:
        """Product of a row vector with the matrix."""
        each = self.entries * row[self.rows]
        return np.bincount(self.columns, each, self.shape[1]).astype(np.float64, copy=False)


@dataclasses.dataclass(frozen=True, eq=False)
class HiddenGathers:
    """Gathers of a program behind compute, and limits of the hidden seconds.

    Attributes:
      uses: numbers of the uses.
      hidden: [uses] tables over the use's scope: most hidden seconds per step.
      shares: [uses, limits] multiplier of a use per multiplier of a limit.
      taken: [limits, kernels] share of a kernel's seconds per multiplier of a limit.
    """

    uses: Sequence[int]
    hidden: Sequence[Floats]
    shares: Floats
    taken: Floats

    @classmethod
    def of(
        cls,
        uses: Sequence[Use],
        hidden: Sequence[Floats | None],
        hiding: HidingCompute,
        beside: Sequence[int],
        count: int,
    ) -> HiddenGathers:
        """Gathers of uses. Numbers of limits are the same whatever labels are left.

        Args:
          hidden: [uses] most hidden seconds, over the scope; None for none.
          hiding: compute of the kernels that a gather may run beside.
          beside: numbers of these kernels.
          count: number of all kernels.
        """
        some = [i for i, use in enumerate(uses) if not use.table.settles]
        groups: dict[int, list[int]] = {}
        for i in some:
            groups.setdefault(uses[i].group if uses[i].group != NONE else -2 - i, []).append(i)
        limits: list[tuple[Sequence[int], Floats]] = []  # uses, and shares of kernels
        for members in groups.values():
            each = [hiding.kernels_before(uses[i]) for i in members]
            limits.append((members, np.sum(each, axis=0)))
        for of in sorted({uses[i].region for i in some}):
            within = {i: hiding.last_run(uses[i]) for i in some if uses[i].region == of}
            stops = {(run.stretch, run.at): run for run in within.values()}
            for stop in sorted(stops)[:: -(-len(stops) // PREFIXES)]:
                upto = [i for i, run in within.items() if (run.stretch, run.at) <= stop]
                limits.append((upto, hiding.kernels_upto(of, stops[stop])))
        found = [i for i in some if hidden[i] is not None]
        place = {i: n for n, i in enumerate(found)}
        shares = np.zeros((len(found), len(limits)))
        for number, (of_uses, _) in enumerate(limits):
            shares[[place[i] for i in of_uses if i in place], number] = 1.0
        rows = np.zeros((len(limits), count))
        if limits:
            rows[:, beside] = [taken for _, taken in limits]
        return cls(found, [h for h in hidden if h is not None], shares, rows)

    def multipliers(self, limits: Floats) -> Floats:
        """[uses] multipliers of the uses by multipliers of the limits."""
        found: Floats = np.minimum(self.shares @ limits, 1.0)
        return found

    def seconds(self, uses: Sequence[Use], columns: Sequence[Columns], labels: Ints) -> Floats:
        """[uses] most hidden seconds at a labelling; uses of one copy have shares."""
        found, seen = np.zeros(len(self.uses)), dict[tuple[int, int], list[int]]()
        for n, (i, table) in enumerate(zip(self.uses, self.hidden, strict=True)):
            place = tuple([int(labels[x]) for x in uses[i].table.scope])
            found[n] = np.broadcast_to(table, columns[i].moved.shape)[place]
            layout = int(columns[i].copies[place])
            if found[n] and layout != NONE and uses[i].group != NONE:
                seen.setdefault((uses[i].group, layout), []).append(n)
        for each in seen.values():
            found[each] /= len(each)
        return found


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Figures:
    """Seconds at a labelling.

    Attributes:
      hidden: [uses] `HiddenGathers.seconds`.
      kernels / above: [kernels] seconds, and upper bounds of them (`KernelTables.above`).
    """

    hidden: Floats
    kernels: Floats
    above: Floats


class Dual:
    """Energies of labellings as functions of the limits' multipliers: concave, piecewise linear.

    Attributes:
      count: number of limits.
    """

    def __init__(
        self, gathers: HiddenGathers, counted: Floats, figures: Callable[[Ints], Figures]
    ) -> None:
        """Dual of gathers.

        Args:
          counted: [kernels] 1.0 for a kernel with seconds in the energy, else 0.0.
          figures: of a labelling.
        """
        self._gathers, self._counted, self._figures = gathers, counted, figures
        self.count = len(gathers.taken)
        self._taken, self._shares = _Sparse.of(gathers.taken), _Sparse.of(gathers.shares)

    def change(self, limits: Floats, labels: Ints) -> float:
        """Change of a labelling's energy from no multipliers."""
        taken, of_uses = self._taken.left_times(limits), self._shares.times(limits)
        return self._change(taken, of_uses, [self._figures(labels)])[0]

    def _change(self, taken: Floats, of_uses: Floats, points: Sequence[Figures]) -> list[float]:
        """Changes of energies, from no multipliers.

        Args:
          taken: [kernels] shares of the seconds.
          of_uses: [uses] sums of the multipliers of the limits.
        """
        m, own = np.minimum(of_uses, 1.0), np.minimum(taken, self._counted)
        return [float(p.hidden @ m - p.kernels @ own - p.above @ (taken - own)) for p in points]

    def raised(self, limits: Floats, points: Sequence[tuple[Ints, float]]) -> Floats:
        """Multipliers of a higher least energy of some labellings, by ascent.

        Args:
          limits: first multipliers of the ascent.
          points: labellings, and their energies with no multipliers.
        """
        figures = [self._figures(labels) for labels, _ in points]
        energies = np.array([energy for _, energy in points])
        best, best_value, m = limits, -np.inf, limits.copy()
        squares = np.zeros(self.count)
        for step in np.geomspace(FIRST_STEP, LAST_STEP, STEPS):
            taken, of_uses = self._taken.left_times(m), self._shares.times(m)
            values = energies + self._change(taken, of_uses, figures)
            lowest = int(np.argmin(values))
            if values[lowest] > best_value:
                best, best_value = m.copy(), float(values[lowest])
            at = figures[lowest]
            each = np.where(taken < self._counted, at.kernels, at.above)
            hidden = np.where(of_uses < 1.0, at.hidden, 0.0)
            slope = self._shares.left_times(hidden) - self._taken.times(each)
            squares += slope * slope
            m = np.maximum(m + step * slope / np.sqrt(np.maximum(squares, 1e-30)), 0.0)
        return best
