"""Seconds of kernels that are cut in two (see `simulator/time/split_kernels.py`)."""

from __future__ import annotations

from collections.abc import Mapping

from partir_search.simulator.time.roofline import Load
from partir_search.simulator.time.split_kernels import Cuts


def split_seconds(cuts: Cuts, load: Load, partial: Mapping[int, int]) -> dict[int, float]:
    """Seconds per step that each kernel takes longer for being cut.

    Args:
      partial: by value id, local bytes of the partial sums that a collective adds up.
    """
    found: dict[int, float] = {}
    for v, nbytes in partial.items():
        k = cuts.kernel.get(v)
        if k is not None:
            found[k] = _longer(cuts, load, v, k, float(nbytes))
    return found


def _longer(cuts: Cuts, load: Load, v: int, k: int, partial: float) -> float:
    parts, batched = load.parts, bool(cuts.passes.batched[k])
    products, vectors = float(parts.products[k]), float(parts.vectors[k])
    own, moves, runs = float(parts.own[k]), float(parts.moves[k]), float(parts.runs[k])
    whole = load.stored_bytes(v)
    first = own + runs * load.move_seconds(partial)
    if v in cuts.stored:
        first -= runs * load.move_seconds(whole)
    itemsize = max(cuts.values[v].type.itemsize, 1)
    storing = runs * load.walk_seconds(partial / itemsize, itemsize)
    longer = _together(products, storing, first, batched)
    longer -= _together(products, vectors, moves, batched)
    if k in cuts.follows:
        longer += moves - own + vectors + runs * load.move_seconds(whole)
        longer += runs * load.kernel_seconds
    return max(longer, 0.0)


def _together(products: float, vectors: float, moves: float, batched: bool) -> float:
    """Seconds of one kernel (see `simulator/time/vector_units.py`)."""
    return max(products, vectors) + moves if batched else max(products, vectors + moves)
