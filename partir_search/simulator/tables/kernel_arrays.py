"""The kernels of a program as arrays: seconds at a labelling, and readings, without a loop.

A kernel over two variables or fewer has one reading for all labellings. A kernel over more, without
a split and without a profile's ratio, has two: its components on the larger side at the labelling
(`kernel_readings.py`). Further kernels are read one by one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from partir_search.exact.pairwise import PairwiseModel
from partir_search.exact.terms import ALONE, Terms
from partir_search.simulator.arrays import Bools, Floats, Ints
from partir_search.simulator.tables.kernel_readings import WHOLE, KernelReadings, Reading
from partir_search.simulator.tables.kernels import KernelTables
from partir_search.simulator.tables.sums import Term

COMPONENTS = ("dots", "vectors", "own", "fused")
"""Tables of a kernel, without the traffic of reduced sums."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class _Owned:
    """Tables of kernels, and seconds of each kernel that depend on no label.

    Attributes:
      terms: the tables.
      owners: [tables] number of the kernel and component of each.
      constants: [kernels and components] seconds besides.
    """

    terms: Terms
    owners: Ints
    constants: Floats

    @classmethod
    def of(cls, each: Sequence[Sequence[Term]], constants: Sequence[float]) -> _Owned:
        """Tables by kernel and component."""
        ends: list[tuple[int, int]] = []
        tables: list[Floats] = []
        owners: list[int] = []
        total = np.array(constants, dtype=np.float64)
        for number, terms in enumerate(each):
            for scope, table in terms:
                if not scope:
                    total[number] += float(table)
                    continue
                crossed = len(scope) == 2 and scope[0] > scope[1]
                pair = (scope[1], scope[0]) if crossed else (scope[0], *scope[1:], ALONE)[:2]
                ends.append((pair[0], pair[1]))
                tables.append((table.T if crossed else table).ravel())
                owners.append(number)
        return cls(Terms.of_rows(ends, tables), np.array(owners, dtype=np.int64), total)

    def at(self, labels: Ints, sizes: Sequence[int]) -> Floats:
        """[kernels and components] seconds at a labelling."""
        found = np.bincount(self.owners, self.terms.values(labels, sizes), len(self.constants))
        return found + self.constants

    def part(self, chosen: Bools) -> tuple[Terms, float]:
        """Sum of some kernels and components: tables and a constant.

        Args:
          chosen: [kernels and components].
        """
        constant = float(self.constants[chosen].sum())
        return self.terms.part(chosen[self.owners]), constant


class KernelArrays:
    """All kernels of a program.

    Attributes:
      ops: [kernels] id of the op at which the simulator counts the seconds of each.
      runs: [kernels] in a step, above zero.
    """

    def __init__(
        self, kernels: Sequence[KernelTables], readings: KernelReadings, sizes: Sequence[int]
    ) -> None:
        """Arrays of kernels over variables with `sizes` labels, and the readings of each."""
        self.ops = np.array([k.op for k in kernels], dtype=np.int64)
        self.runs = np.maximum([k.runs for k in kernels], 1e-30)
        self._readings, self._sizes = readings, sizes
        components = [
            [*component.tables.items()]
            for k in kernels
            for component in (getattr(k, name) for name in COMPONENTS)
        ]
        self._components = _Owned.of(components, [0.0] * len(components))
        ratios = [k.ratio.tables.items() if k.ratio else () for k in kernels]
        self._ratios = _Owned.of(
            [[*each] for each in ratios], [float(not k.ratio) for k in kernels]
        )
        self._batched = np.array([k.batched for k in kernels], dtype=np.bool_)
        self._starts = np.array([k.start for k in kernels], dtype=np.float64)
        few = np.array([len(own) <= 2 for own in readings.variables], dtype=np.bool_)
        sides = np.array([not k.split and not k.ratio for k in kernels], dtype=np.bool_)
        self._few, self._two_sided, self._alone = few, ~few & sides, ~few & ~sides
        self._read: dict[int, tuple[_Owned, Reading]] = {}  # by id of a reading, which stays

    @functools.cached_property
    def _fixed(self) -> _Owned:
        """Readings of kernels over two variables or fewer."""
        nowhere: list[int] = []
        read = [
            self._readings.read(k, nowhere, exact=True) if few else None
            for k, few in enumerate(self._few.tolist())
        ]
        terms = [each.terms if each else () for each in read]
        return _Owned.of(terms, [each.constant if each else 0.0 for each in read])

    def seconds(self, labels: Ints) -> Floats:
        """[kernels] seconds of a step at a labelling, splits apart."""
        dots, vectors, own, fused = self._values(labels)
        moves = own + fused
        found = np.where(
            self._batched, np.maximum(dots, vectors) + moves, np.maximum(dots, vectors + moves)
        )
        total: Floats = (found + self._starts) * self._ratios.at(labels, self._sizes)
        return total

    def model(self, labels: Ints, counted: Bools, *, exact: bool) -> PairwiseModel:
        """Kernels as a pairwise model, as of `read_kernel`.

        Args:
          labels: at which the larger sides are taken.
          counted: [kernels] False for kernels without seconds.
          exact: tables over two other variables are read at the labels; else costs are minorants.
        """
        fixed, constant = self._fixed.part(self._few & counted)
        two_sided = self._two_sided & counted
        coefficients = _COEFFICIENTS[self._batched.astype(np.int64), self._sides(labels)]
        moving, more = self._components.part((two_sided[:, None] & coefficients).ravel())
        constant += more + float(self._starts[two_sided].sum())
        parts, at = [fixed, moving], labels.tolist()
        for k in np.flatnonzero(self._alone & counted).tolist():
            read = self._flat(self._readings.read(k, at, exact=exact))
            parts.append(read.terms)
            constant += float(read.constants[0])
        return PairwiseModel.of_terms(self._sizes, [Terms.all(parts)], constant)

    def _flat(self, reading: Reading) -> _Owned:
        """A reading of one kernel as arrays, made once."""
        known = self._read.get(id(reading))
        if known is None:
            flat = _Owned.of([reading.terms], [reading.constant])
            known = self._read[id(reading)] = flat, reading
        return known[0]

    def _values(self, labels: Ints) -> tuple[Floats, ...]:
        """[kernels] seconds of each component at a labelling."""
        values = self._components.at(labels, self._sizes).reshape(-1, len(COMPONENTS))
        return tuple(values.T)

    def _sides(self, labels: Ints) -> Ints:
        """[kernels] number of the larger side of each kernel at a labelling, the first of equal."""
        dots, vectors, own, fused = self._values(labels)
        moves = own + fused
        first = np.where(self._batched, dots + moves, dots)
        sides: Ints = (vectors + moves > first).astype(np.int64)
        return sides


_COEFFICIENTS: Bools = np.array(
    [[side[: len(COMPONENTS)] for side in WHOLE[batched]] for batched in (False, True)],
    dtype=np.bool_,
)
"""[batched, sides, components] True for components of a side."""
