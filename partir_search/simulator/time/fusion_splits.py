"""Kernels split between a dot and its epilogue by a collective.

The epilogue of a dot belongs to the dot's kernel (`simulator/time/fusion.py`). If a collective
reduces partial sums of the dot, the dot stores the partial sums, and the epilogue reads the reduced
result in a second kernel.
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
    """Kernels led by a dot, the ones that a collective can split.

    Attributes:
      kernel: by id of a leading dot's result, the kernel.
      itemsize: by id of a leading dot's result, bytes of an element, at least 1.
      stored: ids of leading dots' results that the unsplit kernel stores.
      leads: kernels with an epilogue.
      reduced: ids of leading dots' results with a reduction in the epilogue, which therefore cannot
        overwrite its operand after a split.
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
    """Finds the kernels of a module led by a dot.

    Args:
      rules: per op id.
    """
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
    """Kernels split by the collectives of a device-local program.

    Attributes:
      seconds: by kernel, additional seconds per step.
    """

    seconds: Mapping[int, float]

    def __str__(self) -> str:
        return table("SplitKernels", ("kernel", "seconds added"), self.seconds.items())


def split_at_partials(
    splits: FusionSplits, work: VectorWork, roofline: Roofline, partial: Mapping[int, int]
) -> SplitKernels:
    """Splits the kernels with a collective over partial sums of their dot.

    Args:
      partial: by value id, local bytes of the partial sums that a collective reduces.
    """
    found: dict[int, float] = {}
    for v, nbytes in partial.items():
        k = splits.kernel.get(v)
        if k is not None:
            ratio = 1.0 if roofline.ratio is None else float(roofline.ratio[k])
            added = _added(splits, bool(work.batched[k]), roofline, v, k, float(nbytes))
            found[k] = ratio * added
    return SplitKernels(found)


def _added(
    splits: FusionSplits, batched: bool, roofline: Roofline, v: int, k: int, partial: float
) -> float:
    """Additional seconds per step of splitting kernel `k` after the dot with result `v`."""
    c = roofline.components
    dots, vectors = float(c.dots[k]), float(c.vectors[k])
    own, moves, runs = (
        float(c.own[k]),
        float(c.moves[k]),
        float(c.runs[k]),
    )
    reduced_bytes = roofline.stored_bytes(v)
    dot_moves = own + runs * roofline.move_seconds(partial)
    if v in splits.stored:
        dot_moves -= runs * roofline.move_seconds(reduced_bytes)
    itemsize = splits.itemsize[v]
    dot_vectors = runs * roofline.vector_seconds(partial / itemsize, itemsize)
    added = _kernel_seconds(dots, dot_vectors, dot_moves, batched)
    added -= _kernel_seconds(dots, vectors, moves, batched)
    if k in splits.leads:  # the epilogue's kernel reads the reduced result
        added += moves - own + vectors + runs * roofline.move_seconds(reduced_bytes)
        added += runs * roofline.machine.kernel_seconds
    return max(added, 0.0)


def _kernel_seconds(dots: float, vectors: float, moves: float, batched: bool) -> float:
    """Seconds of one kernel by the formula of `time/roofline.py`."""
    return max(dots, vectors) + moves if batched else max(dots, vectors + moves)
