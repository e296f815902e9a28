"""Kernels as tables: the components of each kernel's seconds over labels.

A kernel takes `max(dots, vectors + moves)` (`time/roofline.py`), and where a collective splits the
kernel, the larger of that and of its two kernels (`time/fusion_splits.py`). Each component is a sum
of tables; the maximum is linear once the larger side is known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from partir_search.ir.rule import NONE
from partir_search.simulator.arrays import Floats, Ints
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.tables.shares import Shares
from partir_search.simulator.tables.sums import Scope, Sum
from partir_search.simulator.time.roofline import move_seconds


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Split:
    """Split of a kernel between a dot and its epilogue, where the dot's result is partial.

    Attributes:
      variable: of the dot's loops.
      splits: [labels] 1.0 where partial sums are reduced at the dot's result, else 0.0.
      partial_moves / partial_vectors: [labels] seconds to move the partial sums, and of vector
        units to store them.
      reduced: seconds to move the reduced sums.
      stored: the kernel stores the result though it is not split.
      leads: the kernel has an epilogue.
      start: seconds to start the epilogue's own kernel.
    """

    variable: int
    splits: Floats
    partial_moves: Floats
    partial_vectors: Floats
    reduced: Sum
    stored: bool
    leads: bool
    start: float

    def restricted(self, kept: Sequence[Ints]) -> Split:
        """The split over subsets of the labels, by variable."""
        own = kept[self.variable]
        return dataclasses.replace(
            self,
            splits=self.splits[own],
            partial_moves=self.partial_moves[own],
            partial_vectors=self.partial_vectors[own],
            reduced=self.reduced.restricted(kept),
        )

    def scaled(self, factor: float) -> Split:
        """The split with all seconds times a factor."""
        return dataclasses.replace(
            self,
            partial_moves=self.partial_moves * factor,
            partial_vectors=self.partial_vectors * factor,
            reduced=self.reduced.times(factor),
            start=self.start * factor,
        )


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class KernelTables:
    """One kernel, all fused into it included; seconds per step.

    Attributes:
      op: id of the op at which the simulator counts the seconds.
      runs: in a step.
      dots / vectors: seconds of matrix and vector units.
      own / fused: seconds of traffic of the leading kernel and of those fused into it.
      start: seconds to start.
      batched: a dot of many matrices.
      ratio: of measured to modelled seconds, one table; None for 1.
    """

    op: int
    runs: float
    dots: Sum
    vectors: Sum
    own: Sum
    fused: Sum
    start: float
    batched: bool
    split: Split | None
    ratio: Sum | None = None

    @property
    def variables(self) -> set[int]:
        """Variables of all components."""
        found = set.union(*(s.variables for s in (self.dots, self.vectors, self.own, self.fused)))
        if self.split:
            found |= {self.split.variable, *self.split.reduced.variables}
        return found | self.ratio.variables if self.ratio else found

    def restricted(self, kept: Sequence[Ints]) -> KernelTables:
        """The kernel over subsets of the labels, by variable."""
        return dataclasses.replace(
            self,
            dots=self.dots.restricted(kept),
            vectors=self.vectors.restricted(kept),
            own=self.own.restricted(kept),
            fused=self.fused.restricted(kept),
            split=self.split.restricted(kept) if self.split else None,
            ratio=self.ratio.restricted(kept) if self.ratio else None,
        )

    def scaled(self, factor: float) -> KernelTables:
        """The kernel with all seconds times a factor."""
        return dataclasses.replace(
            self,
            dots=self.dots.times(factor),
            vectors=self.vectors.times(factor),
            own=self.own.times(factor),
            fused=self.fused.times(factor),
            start=self.start * factor,
            split=self.split.scaled(factor) if self.split else None,
        )

    def at(self, labels: Sequence[int]) -> float:
        """Seconds at a labelling, splits apart."""
        dots, vectors = self.dots.at(labels), self.vectors.at(labels)
        moves = self.own.at(labels) + self.fused.at(labels)
        found = max(dots, vectors) + moves if self.batched else max(dots, vectors + moves)
        return (found + self.start) * (self.ratio.at(labels) if self.ratio else 1.0)

    def above(self) -> Sum:
        """Upper bound of the seconds, splits apart: of all units and all traffic in turn."""
        largest = self.ratio.most() if self.ratio else 1.0
        found = Sum([((), np.array(self.start * largest))])
        for component in (self.dots, self.vectors, self.own, self.fused):
            for scope, table in component.tables.items():
                found.add(scope, table * largest)
        return found

    def most(self) -> tuple[float, dict[int, Floats]]:
        """Upper bounds of the seconds, splits apart: of all labels, and of each label of each
        variable.
        """
        components = (self.dots, self.vectors, self.own, self.fused)
        most = [c.most() for c in components]
        along = [c.most_along() for c in components]

        def seconds(dots: Any, vectors: Any, own: Any, fused: Any) -> Any:
            moves = own + fused
            if self.batched:
                return np.maximum(dots, vectors) + moves + self.start
            return np.maximum(dots, vectors + moves) + self.start

        scale = self.ratio or Sum([((), np.ones(()))])
        largest, scales = scale.most(), scale.most_along()
        by_variable = {
            x: seconds(*(a.get(x, m) for a, m in zip(along, most, strict=True)))
            * scales.get(x, largest)
            for x in set(scales).union(*along)
        }
        return float(seconds(*most)) * largest, by_variable


def kernel_tables(model: CostModel, shares: Shares) -> list[KernelTables]:
    """Tables of all kernels of a model's module."""
    built = _Builder(model, shares)
    return list(built.kernels())


class _Builder:
    """Components of kernels, added up by the kernel that leads."""

    def __init__(self, model: CostModel, shares: Shares) -> None:
        self._model, self._shares = model, shares
        self._time, self._memory, self._machine = model.time, model.memory, model.machine
        self._moves: dict[int, tuple[Scope, Floats]] = {}  # by value id

    def kernels(self) -> Iterator[KernelTables]:
        kernels, work = self._time.kernels, self._time.work
        n = len(kernels.op)
        sums = [(Sum(), Sum(), Sum(), Sum()) for _ in range(n)]
        bandwidth = self._machine.attained_hbm_bytes_per_s
        leaders = kernels.leader.tolist()
        starts = 1.0 + np.bincount(kernels.leader, kernels.copies, n)
        for k, leader in enumerate(leaders):
            dots, vectors, own, fused = sums[leader]
            runs, (scope, share) = float(kernels.times[k]), self._shares.op(int(kernels.op[k]))
            if kernels.flops[k]:
                dots.add(scope, share * (float(kernels.flops[k]) * runs / self._rate(k)))
            if work.nbytes[k]:
                of_result = int(work.of_result[k])
                walked = (scope, share) if of_result < 0 else self._shares.value(of_result)
                vectors.add(walked[0], walked[1] * (float(work.nbytes[k]) * runs / bandwidth))
            for v in kernels.values(k):
                scope, moved = self.moves(v)
                (own if k == leader else fused).add(scope, moved * runs)
        for c, k in enumerate(self._time.copies.kernel.tolist()):
            runs, leader = float(kernels.times[k]), leaders[k]
            scope, moved = self._copied(c)
            sums[leader][2 if k == leader else 3].add(scope, moved * (2.0 * runs))
        splits = {k: v for v, k in self._time.splits.kernel.items()}
        for k, leader in enumerate(leaders):
            if k == leader:
                runs = float(kernels.times[k])
                start = runs * self._machine.kernel_seconds * float(starts[k])
                split = self._split(k, splits[k], runs) if k in splits else None
                batched, op, ratio = bool(work.batched[k]), int(kernels.op[k]), self._ratio(k)
                yield KernelTables(op, runs, *sums[k], start, batched, split, ratio)
        yield from self._into_stacks()

    def _into_stacks(self) -> Iterator[KernelTables]:
        """Copies into stacks of scans, one kernel each."""
        stacks, kernels = self._time.stacks, self._time.kernels
        bandwidth = self._machine.attained_hbm_bytes_per_s
        for c, k in enumerate(stacks.kernel.tolist()):
            v, runs = int(stacks.value[c]), float(kernels.times[k])
            scope, share = self._shares.value(v)
            vectors = Sum([(scope, share * (float(stacks.vectors[c]) * runs / bandwidth))])
            scope, stored = self._stored(v)
            written = move_seconds(stored, self._machine, float(stacks.rows[c]))
            moves = Sum([(scope, (move_seconds(stored, self._machine) + written) * runs)])
            start, leader = runs * self._machine.kernel_seconds, int(kernels.leader[k])
            op = int(kernels.op[leader])
            yield KernelTables(op, runs, Sum(), vectors, moves, Sum(), start, False, None)

    def _rate(self, k: int) -> float | Floats:
        """Flops per second of a kernel's product: by loops if a profile has such products, if
        sizes are not aligned, or if a convolution has few features.
        """
        rate: float | Floats = float(self._time.rates[k])
        corrections, time = self._time.corrections, self._time
        products = corrections.products if corrections else None
        sizes = self._shares.variables.mesh.sizes
        if not any(x and k in x.place for x in (products, time.convolutions, time.alignment)):
            return rate
        _, loops = self._shares.loops(int(time.kernels.op[k]))
        if products and k in products.place:
            rate = products.rates_at(k, loops, sizes)
        elif time.convolutions and k in time.convolutions.place:
            rate = rate * time.convolutions.share_at(k, loops, sizes)
        if time.alignment and k in time.alignment.place:
            rate = rate * time.alignment.share_at(k, loops, sizes)
        return rate

    def _ratio(self, k: int) -> Sum | None:
        """Ratio of a leading kernel; None without a profile."""
        corrections = self._time.corrections
        if not corrections:
            return None
        scope, loops = self._shares.loops(int(self._time.kernels.op[k]))
        return Sum([(scope, corrections.ratios_at(k, loops, self._shares.variables.mesh.sizes))])

    def moves(self, v: int) -> tuple[Scope, Floats]:
        """Seconds to move a value once."""
        found = self._moves.get(v)
        if found is None:
            scope, stored = self._stored(v)
            rows = float(self._memory.rows[v])
            found = self._moves[v] = scope, move_seconds(stored, self._machine, rows)
        return found

    def _stored(self, v: int) -> tuple[Scope, Floats]:
        """Local bytes of a value, in its storage dtype."""
        scope, share = self._shares.stored(v)
        return scope, float(self._memory.nbytes[v]) * float(self._memory.width[v]) * share

    def _copied(self, c: int) -> tuple[Scope, Floats]:
        """Seconds to read or write a copy between layouts."""
        copies, memory = self._time.copies, self._memory
        v = int(copies.value[c])
        scope, share = self._shares.copied(c, copies)
        nbytes = float(memory.nbytes[v]) * float(memory.width[v]) * share
        return scope, move_seconds(nbytes, self._machine)

    def _split(self, k: int, v: int, runs: float) -> Split | None:
        variables, splits, machine = self._shares.variables, self._time.splits, self._machine
        op_id = int(self._time.kernels.op[k])
        module, rule = variables.graph.module, variables.graph.rules[op_id]
        q = int(variables.of_op[op_id])
        if q < 0:
            return None
        labels, value = variables.sets[q], module.values[v]
        dims = rule.results[[r.id for r in module.ops[op_id].results].index(v)]
        factors = range(len(rule.sizes))
        tiled = np.array([rule.dim_of(dims, f) >= 0 for f in factors], dtype=np.bool_)
        looped = labels.codes >= 0
        tiles = looped & tiled[np.where(looped, labels.codes, 0)] if len(tiled) else looped
        partial = (looped & ~tiles) | (labels.codes < NONE)
        if v in variables.makers:
            partial &= ~labels.deferred
        finished: Floats = np.asarray(partial.any(axis=1), dtype=np.float64)
        if not finished.any():
            return None
        local = np.where(tiles, labels.codes, NONE)
        nbytes: Floats = self._shares.of_codes(local) * float(value.type.nbytes)
        itemsize = int(splits.itemsize[v])
        narrow = itemsize < machine.vector_bytes
        per_byte = runs * narrow * machine.vector_bytes / itemsize
        stores: Floats = np.multiply(nbytes, per_byte / machine.attained_hbm_bytes_per_s)
        partial_moves: Floats = np.multiply(move_seconds(nbytes, machine), runs)
        return Split(
            q,
            finished,
            partial_moves,
            stores,
            Sum([(self.moves(v)[0], self.moves(v)[1] * runs)]),
            v in splits.stored,
            k in splits.leads,
            runs * machine.kernel_seconds,
        )
