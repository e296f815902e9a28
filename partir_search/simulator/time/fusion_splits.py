"""Kernels that a collective splits in two, between a dot and its epilogue.

The epilogue of a dot is part of the dot's kernel (`simulator/time/fusion.py`), unless devices have
partial sums of the dot: then the dot stores these, and the epilogue reads the finished sums in a
kernel of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set

import numpy as np

from partir_search.ir.core import Module
from partir_search.ir.rule import OpRule
from partir_search.simulator.op_kinds import is_reduction
from partir_search.simulator.printing import table
from partir_search.simulator.time.kernels import Kernels
from partir_search.simulator.time.roofline import Roofline
from partir_search.simulator.time.vector_units import VectorWork


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class FusionSplits:
    """Kernels that begin with a dot.

    Attributes:
      kernel: by id of such a dot's result, its kernel.
      itemsize: by id of such a dot's result, bytes of an element, at least 1.
      stored: ids of those results that the kernel stores though it is not split.
      leads: kernels that others are fused into.
      reduced: ids of those results that the epilogue reduces, and so cannot overwrite if split.
    """

    kernel: Mapping[int, int]
    itemsize: Mapping[int, int]
    stored: Set[int]
    leads: Set[int]
    reduced: Set[int]

    def __str__(self) -> str:
        rows = [
            (k, v, v in self.stored, k in self.leads, v in self.reduced)
            for v, k in self.kernel.items()
        ]
        head = ("kernel", "dot's value id", "stored anyway", "has an epilogue", "reduced there")
        return table("FusionSplits", head, rows)


def find_splits(module: Module, rules: Sequence[OpRule], kernels: Kernels) -> FusionSplits:
    """Kernels of a module that collectives can split."""
    ops, leaders = kernels.op.tolist(), kernels.leader.tolist()
    joined = np.flatnonzero(kernels.leader != np.arange(len(ops))).tolist()
    leads = frozenset(leaders[k] for k in joined)
    sums = frozenset(leaders[k] for k in joined if is_reduction(rules[ops[k]]))
    kernel: dict[int, int] = {}
    itemsize: dict[int, int] = {}
    stored, reduced = set[int](), set[int]()
    for k, op_id in enumerate(ops):
        if leaders[k] != k or not rules[op_id].contracts:
            continue
        for r in module.ops[op_id].results:
            kernel[r.id], itemsize[r.id] = k, max(r.type.itemsize, 1)
            if r.id in kernels.values(k):
                stored.add(r.id)
            if k in sums:
                reduced.add(r.id)
    return FusionSplits(kernel, itemsize, stored, leads, reduced)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class SplitKernels:
    """Kernels of a device-local program that a collective splits.

    Attributes:
      seconds: by kernel, seconds per step that the split adds.
    """

    seconds: Mapping[int, float]

    def __str__(self) -> str:
        return table("SplitKernels", ("kernel", "seconds added"), self.seconds.items())


def split_at_partials(
    splits: FusionSplits, work: VectorWork, roofline: Roofline, partial: Mapping[int, int]
) -> SplitKernels:
    """Kernels split by collectives of partial sums.

    Args:
      partial: by value id, local bytes of the partial sums that a collective adds up.
    """
    found: dict[int, float] = {}
    for v, nbytes in partial.items():
        k = splits.kernel.get(v)
        if k is not None:
            found[k] = _added(splits, bool(work.batched[k]), roofline, v, k, float(nbytes))
    return SplitKernels(found)


def _added(
    splits: FusionSplits, batched: bool, roofline: Roofline, v: int, k: int, partial: float
) -> float:
    """Seconds that splitting kernel `k` after the dot that makes value `v` adds."""
    parts = roofline.parts
    dots, vectors = float(parts.dots[k]), float(parts.vectors[k])
    own, moves, runs = float(parts.own[k]), float(parts.moves[k]), float(parts.runs[k])
    whole = roofline.stored_bytes(v)
    first = own + runs * roofline.move_seconds(partial)
    if v in splits.stored:
        first -= runs * roofline.move_seconds(whole)
    itemsize = splits.itemsize[v]
    storing = runs * roofline.vector_seconds(partial / itemsize, itemsize)
    longer = _together(dots, storing, first, batched)
    longer -= _together(dots, vectors, moves, batched)
    if k in splits.leads:
        longer += moves - own + vectors + runs * roofline.move_seconds(whole)
        longer += runs * roofline.machine.kernel_seconds
    return max(longer, 0.0)


def _together(dots: float, vectors: float, moves: float, batched: bool) -> float:
    """Seconds of one kernel, as in `time/roofline.py`."""
    return max(dots, vectors) + moves if batched else max(dots, vectors + moves)
