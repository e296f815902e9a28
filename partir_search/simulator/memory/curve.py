"""Live-memory curve of a region, in a whole module or in a quotient.

The curve is a sparse matrix: by row (a position of the region) and class, the number of the class's
members that come to life less the number that die. Live bytes under a partition are the cumulative
sum of the matrix times the local bytes of each class. The curve of a quotient has rows for the
first and last repeats of each op only, as counts are linear in the layer in between. Short-lived
values stay in memory on the chip, as far as they fit (`XlaTraits.vmem_lifetime_kernels`,
`XlaTraits.vmem_kernel_bytes`, `XlaTraits.vmem_value_fraction`). Operands and results of a loop over
microbatches stay there in a part of what is left (`XlaTraits.vmem_held_fraction`,
`XlaTraits.vmem_carried_fraction`, `XlaTraits.vmem_inner_fraction`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from partir_search.ir.core import Value
from partir_search.passes.fold.fold import Folded
from partir_search.passes.fold.linear import KeptOps
from partir_search.rules.control_flow import ACCUMULATES
from partir_search.simulator.arrays import Bools, Floats, Ints
from partir_search.simulator.memory.buffers import Buffers
from partir_search.simulator.printing import table
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.target.traits import XlaTraits

EDGE_REPEATS = 2  # first and last repeats of an op that have rows in a quotient's curve
MAX_CACHED = 64  # cached results of `Curve.cached_bytes_at`


@dataclasses.dataclass(frozen=True, slots=True)
class _Changes:
    """Sparse matrix [size, classes]: members of each class that come to life at each row.

    Attributes:
      rows / classes / weights: [entries] row, column and value, in order of rows; deaths are
        negative.
    """

    rows: Ints
    classes: Ints
    weights: Floats
    size: int

    @classmethod
    def of(cls, rows: Ints, classes: Ints, weights: Floats, size: int) -> _Changes:
        """Matrix of entries in any order, with entries of the same row and class added up."""
        width = int(np.max(classes, initial=0)) + 1
        places, entry = np.unique(rows * width + classes, return_inverse=True)
        summed = np.bincount(entry, weights, len(places)).astype(np.float64, copy=False)
        return cls(places // width, places % width, summed, size)

    def bytes_at(self, nbytes: Floats) -> Floats:
        """Change of live bytes at each row.

        Args:
          nbytes: [classes] bytes of one member of a class.

        Returns:
          [size] bytes of values that begin to live, less bytes of values that die.
        """
        moved = self.weights * nbytes[self.classes]
        return np.bincount(self.rows, moved, self.size).astype(np.float64, copy=False)

    def weights_upto(self, row: int, width: int) -> Floats:
        """[width] members of each class that live at a row."""
        stop = int(np.searchsorted(self.rows, row, side="right"))
        found = np.bincount(self.classes[:stop], self.weights[:stop], width)
        return found.astype(np.float64, copy=False)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Curve:
    """Live bytes over the positions of one region, as a function of the bytes of each value.

    Attributes:
      position: [R] position of each row's op, in the quotient if folded.
      covered: positions up to the next change of live values, row after row.
      cover: [R] first entry of each row in `covered`.
      near: changes of values with a place in memory on the chip, if small enough.
      far: changes of all values without.
      held: changes of values with a place on the chip in the rows of `loops` only.
      loops: [R] rows of loops over microbatches.
      written_out: [R] rows of such loops without loops of several iterations inside.
      inside: curves of the regions of the region's ops.
      vmem_bytes: memory on the chip.
      held_fraction: see `XlaTraits.vmem_held_fraction`.
      carried_fraction: see `XlaTraits.vmem_carried_fraction`.
      max_near_bytes: largest value that lives in memory on the chip.
      max_inner_bytes: see `XlaTraits.vmem_inner_fraction`.
      values: number of the values, or classes, that the curve knows.
      changing: ids of the values, or classes, with live ranges.
    """

    position: Ints
    covered: Ints
    cover: Ints
    near: _Changes
    far: _Changes
    held: _Changes
    loops: Bools
    written_out: Bools
    inside: Sequence[Curve]
    vmem_bytes: float
    held_fraction: float
    carried_fraction: float
    max_near_bytes: float
    max_inner_bytes: float
    values: int
    changing: Ints
    cache: dict[bytes, tuple[Floats, float]] = dataclasses.field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        head = f"Curve: {len(self.position)} rows, {len(self.changing)} values with live ranges"
        rows = [
            ("in main memory", len(self.far.rows)),
            ("on the chip", len(self.near.rows)),
            ("on the chip in loops", len(self.held.rows)),
        ]
        return table(head, ("", "changes"), rows)

    def bytes_at(self, nbytes: Floats) -> Floats:
        """[R] live bytes of stored values in main memory, given [values] local bytes."""
        all_bytes, nbytes = nbytes, nbytes[: self.values]
        if not len(self.near.rows) and not len(self.held.rows):
            alone: Floats = self.far.bytes_at(nbytes)
            return np.cumsum(alone, out=alone)[:-1]
        small = np.where(nbytes <= self.max_near_bytes, nbytes, 0.0)
        far: Floats = self.far.bytes_at(nbytes)
        if len(self.held.rows):
            held = self.held.bytes_at(small)
            far += self.held.bytes_at(nbytes - small)
            held = np.cumsum(held, out=held)
            held[:-1] -= np.minimum(held[:-1], self._for_held(all_bytes))
            far += np.diff(held, prepend=0.0)
        far += self.near.bytes_at(nbytes - small)
        near: Floats = self.near.bytes_at(small)
        for changes in (far, near):  # in place: programs of 1,000 layers have large curves
            np.cumsum(changes, out=changes)
        near -= self.vmem_bytes
        far += np.maximum(near, 0.0, out=near)
        return far[:-1]

    def most_near(self, nbytes: Floats) -> float:
        """Most bytes of short-lived values that fit, in the region and in regions inside."""
        known = nbytes[: self.values]
        small = np.where(known <= self.max_near_bytes, known, 0.0)
        own = float(np.max(np.cumsum(self.near.bytes_at(small)), initial=0.0))
        return own + max((curve.most_near(nbytes) for curve in self.inside), default=0.0)

    def _for_held(self, nbytes: Floats) -> Floats:
        """[R] bytes on the chip for values of `held`, beside short-lived values in the loops."""
        taken = max((curve.most_near(nbytes) for curve in self.inside), default=0.0)
        left = max(0.0, self.vmem_bytes - taken) * self.held_fraction
        alone = self.vmem_bytes * self.carried_fraction
        if self._small_inside(nbytes):
            left = max(0.0, self.vmem_bytes - taken) * self.carried_fraction
        return np.where(self.written_out, alone, np.where(self.loops, left, 0.0))

    def _small_inside(self, nbytes: Floats) -> bool:
        """True if carries fit on the chip, and values of the loops inside leave room for them."""
        carried = float(np.max(nbytes[self.held.classes], initial=0.0))
        inner = (deep.largest(nbytes) for curve in self.inside for deep in curve.inside)
        return carried <= self.max_near_bytes and max(inner, default=0.0) <= self.max_inner_bytes

    def largest(self, nbytes: Floats) -> float:
        """Bytes of the largest value that the region makes, or a region inside."""
        own = float(np.max(nbytes[self.changing], initial=0.0))
        return max([own, *(curve.largest(nbytes) for curve in self.inside)])

    def temporaries_at(self, bytes_at: Floats) -> Floats:
        """[R] most temporaries from each row on until live values change.

        Args:
          bytes_at: [positions] bytes of temporaries.
        """
        found: Floats = np.maximum.reduceat(bytes_at[self.covered], self.cover)
        return found

    def positions_of(self, row: int) -> Ints:
        """Positions from a row on until live values change; see `temporaries_at`."""
        stop = self.cover[row + 1] if row + 1 < len(self.cover) else len(self.covered)
        return self.covered[self.cover[row] : stop]

    def row_weights(self, row: int, nbytes: Floats) -> tuple[Floats, float]:
        """[values] weight of each value's bytes in a row of `bytes_at`, and bytes besides.

        Exact at `nbytes`, and wherever the same values live in memory on the chip.
        """
        all_bytes, nbytes = nbytes, nbytes[: self.values]
        weights = self.far.weights_upto(row, self.values)
        small = nbytes <= self.max_near_bytes
        besides = 0.0
        for changes, most in (
            (self.near, self.vmem_bytes),
            (self.held, float(self._for_held(all_bytes)[row])),
        ):
            found = changes.weights_upto(row, self.values)
            if not found.any():
                continue
            weights += np.where(small, 0.0, found)
            on_chip = np.where(small, found, 0.0)
            if float((on_chip * nbytes).sum()) > most:
                weights += on_chip
                besides -= most
        return weights, besides

    def cached_bytes_at(self, nbytes: Floats) -> tuple[Floats, float]:
        """Cached `bytes_at`, with the maximum of all rows."""
        key = nbytes[self.changing].tobytes()
        result = self.cache.get(key)
        if result is None:
            if len(self.cache) == MAX_CACHED:
                self.cache.clear()
            live = self.bytes_at(nbytes)
            result = self.cache[key] = live, float(np.max(live, initial=0.0))
        return result


def live_curve(
    buffers: Buffers,
    machine: Machine,
    folded: Folded | None = None,
    places: KeptOps | None = None,
    inside: Sequence[Curve] = (),
    *,
    early: bool = False,
) -> Curve:
    """Builds the curve of a region's live ranges.

    Args:
      inside: curves of the regions of the region's ops.
      folded: fold of the region's module, for the curve of the quotient.
      places: ops of the region in the quotient; the body's by default.
      early: updates run early (`memory/early_updates.py`); rows are the same.
    """
    ranges, region = buffers.ranges, buffers.region
    stop = ranges.early_stop if early else ranges.stop
    kernel = np.zeros(max(len(region.ops), 1) + 1, dtype=np.int64)
    for at in large_kernels(buffers, machine.traits):
        kernel[at] = 1
        if region.ops[at].params.get(ACCUMULATES):
            kernel[at] += _kernels_inside(buffers, at, machine.traits)
    kernel = np.cumsum(kernel)
    results = [x.id for x in region.results if isinstance(x, Value)]
    over = [at for at in buffers.inner if region.ops[at].params.get(ACCUMULATES)]
    near = kernel[stop] - kernel[_first_kernels(buffers, over)] <= (
        machine.traits.vmem_lifetime_kernels
    )
    near &= ~np.isin(ranges.value, results)
    passed = [
        v.id
        for at in over
        for v in (*region.ops[at].operands, *region.ops[at].results)
        if isinstance(v, Value)
    ]
    held = ~near & np.isin(ranges.value, passed) & ~np.isin(ranges.value, results)
    rows = np.arange(max(len(region.ops), 1), dtype=np.int64)
    following = rows + 1
    classes = ranges.value
    if folded is not None:
        places = places or folded.body
        classes = np.array([folded.class_of[v] for v in ranges.value], dtype=np.int64)
    if places is not None and not places.op_of:  # a branch that returns its arguments
        places = None
    if places is not None:
        # A move of an op's result is positioned at the row after the op's.
        ends = ranges.start, ranges.start + 1, ranges.stop, ranges.early_stop
        rows, following = _rows(places, np.concatenate(ends))
    position = covered = rows
    cover = rows
    if places is not None:
        op_of = np.array(places.op_of, dtype=np.int64)
        spans = [np.unique(op_of[r:n]) for r, n in zip(rows, following, strict=True)]
        position, covered = op_of[rows], np.concatenate(spans)
        cover = np.cumsum([0, *map(len, spans[:-1])])
    values = len(folded.module.values) if folded else int(np.max(ranges.value, initial=-1)) + 1
    first = np.searchsorted(rows, ranges.start, side="left")
    last = np.searchsorted(rows, stop, side="right")

    def changes(which: Bools) -> _Changes:
        which = which & (classes >= 0)
        weight, cls = ranges.weight[which], classes[which]
        at = np.concatenate((first[which], last[which]))
        weights = np.concatenate((weight, -weight))
        return _Changes.of(at, np.concatenate((cls, cls)), weights, len(rows) + 1)

    short, long, waiting = changes(near), changes(~near & ~held), changes(held)
    changing = np.unique(np.concatenate((short.classes, long.classes, waiting.classes)))
    max_near = machine.vmem_bytes * machine.traits.vmem_value_fraction
    return Curve(
        position=position,
        covered=covered,
        cover=cover,
        near=short,
        far=long,
        held=waiting,
        loops=np.isin(rows, over),
        written_out=np.isin(rows, [at for at in over if not _has_loops(buffers.inner[at])]),
        inside=inside,
        vmem_bytes=machine.vmem_bytes,
        held_fraction=machine.traits.vmem_held_fraction,
        carried_fraction=machine.traits.vmem_carried_fraction,
        max_near_bytes=max_near,
        max_inner_bytes=machine.vmem_bytes * machine.traits.vmem_inner_fraction,
        values=values,
        changing=changing,
    )


def early_curve(
    buffers: Buffers, machine: Machine, inside: Sequence[Curve], folded: Folded | None = None
) -> Curve | None:
    """`live_curve` of a module's body if updates run early; None if equal."""
    if not early_values(buffers):
        return None
    return live_curve(buffers, machine, folded, inside=inside, early=True)


def early_values(buffers: Buffers) -> list[int]:
    """Ids of a region's values with shorter lives if updates run early."""
    ranges = buffers.ranges
    found: list[int] = ranges.value[ranges.early_stop < ranges.stop].tolist()
    return found


def _has_loops(inner: Sequence[Buffers]) -> bool:
    """True if regions of an op hold a loop of several iterations, at any depth."""
    return any(
        buffers.repeats[at] or _has_loops(found)
        for buffers in inner
        for at, found in buffers.inner.items()
    )


def large_kernels(buffers: Buffers, traits: XlaTraits) -> list[int]:
    """Positions of the kernels with at least some bytes of one value, made or read.

    In small programs a fraction of the bytes of the largest value is enough.
    """
    stored, ops = buffers.materialized, buffers.region.ops

    def largest(at: int) -> int:
        results = max((r.type.nbytes for r in ops[at].results), default=0)
        return max(results, max((stored.nbytes.get(v, 0) for v in stored.reads[at]), default=0))

    found = {at: largest(at) for at in stored.reads}
    largest_of_all = max(found.values(), default=0)
    least = min(traits.vmem_kernel_bytes, int(traits.vmem_kernel_fraction * largest_of_all))
    return [at for at, nbytes in found.items() if nbytes >= least]


def _first_kernels(buffers: Buffers, loops: Sequence[int]) -> Ints:
    """[intervals] start, or the position before for a carry of a loop over microbatches.

    The buffer of such a carry is read and written in all iterations.

    Args:
      loops: positions of the loops over microbatches.
    """
    carried = [r.id for at in loops for r in buffers.region.ops[at].results]
    start = buffers.ranges.start
    return np.where(np.isin(buffers.ranges.value, carried), start - 1, start)


def _kernels_inside(buffers: Buffers, at: int, traits: XlaTraits) -> int:
    """Number of large kernels in the regions of an op, of one iteration of a loop."""
    return sum(
        1 + _kernels_inside(inside, k, traits)
        for inside in buffers.inner.get(at, ())
        for k in large_kernels(inside, traits)
    )


def _rows(places: KeptOps, ends: Ints) -> tuple[Ints, Ints]:
    """Positions of the original at which the curve of its quotient can peak.

    Args:
      ends: positions at which a value comes to life, is moved, or dies.

    Returns:
      The positions, and the following change of live values for each.
    """
    length = len(places.op_of)
    keep = np.zeros(length, dtype=bool)
    keep[ends[ends < length]] = True
    changes = np.append(np.flatnonzero(keep), length)
    members: dict[int, list[int]] = {}
    for row in changes[:-1].tolist():
        members.setdefault(places.op_of[row], []).append(row)
    for rows in members.values():
        keep[rows[EDGE_REPEATS : max(EDGE_REPEATS, len(rows) - EDGE_REPEATS)]] = False
    if not keep.any():
        keep[-1:] = True
    found = np.flatnonzero(keep).astype(np.int64)
    return found, changes[np.searchsorted(changes, found, side="right")]
