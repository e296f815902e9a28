"""Factors of a node that loops on further axes leave free."""

from __future__ import annotations

from collections.abc import Sequence

from partir_search.ir.rule import NONE
from partir_search.propagation.graph import NodeStructure

Loops = Sequence[tuple[int, int]]  # (factor, size of the axis) per axis


def free_factor(structure: NodeStructure, factors: tuple[int, ...], loops: Loops) -> int:
    """First of a dim's factors, major to minor, with an extent above 1 left by loops.

    Returns:
      NONE if the loops do not use up the major factors yet: a tile of the factor would not be
      contiguous in the dim.
    """
    for f in factors:
        if remaining(structure, f, loops) == 1:
            continue
        for g in structure.major_factors[f]:
            if remaining(structure, g, loops) > 1:
                return NONE
        return f
    return NONE


def remaining(structure: NodeStructure, factor: int, loops: Loops) -> int:
    """Extent of a factor after loops over the factor."""
    extent = structure.sizes[factor]
    for looped, size in loops:
        if looped == factor:
            extent //= size
    return extent


def may_loop_over(structure: NodeStructure, factor: int, axis: int, loops: Loops) -> bool:
    """True if a node has a loop or none yet along an axis, and the axis divides the factor further.

    Args:
      factor: factor of the loop; NONE for no loop.
      axis: position in `loops`.
      loops: loops of the node on all axes.
    """
    now, size = loops[axis]
    if now >= 0 or factor < 0:
        return now < 0 or now == factor
    return remaining(structure, factor, loops) % size == 0
