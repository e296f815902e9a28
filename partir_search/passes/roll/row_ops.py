"""Slices and pads of single rows of arrays."""

from __future__ import annotations

from collections.abc import Sequence

from partir_search.ir.analysis.reductions import is_zero
from partir_search.ir.core import Op
from partir_search.ir.role import Role
from partir_search.rules.registry import role_of


def dim_of_row(row: Sequence[int], whole: Sequence[int]) -> int | None:
    """The one dim with a single element in a row, of more in the whole array."""
    changed = [d for d, (k, n) in enumerate(zip(row, whole, strict=True)) if k != n]
    return changed[0] if len(changed) == 1 and row[changed[0]] == 1 else None


def place_of_row(pad: Op) -> tuple[int, int] | None:
    """Row and dim of a pad of one row by zeros; None for any further op."""
    if role_of(pad) is not Role.PADDING or not is_zero(pad.operands[1], set()):
        return None
    dim = dim_of_row(pad.operands[0].type.shape, pad.results[0].type.shape)
    config = pad.params["padding_config"]
    return None if dim is None or any(k for *_, k in config) else (int(config[dim][0]), dim)
