"""Floating-point types by their widths, and ops that change a width."""

from __future__ import annotations

import numpy as np

from partir_search.ir.core import Op, TensorType
from partir_search.ir.rule import OpRule


def is_float(kind: TensorType, itemsize: int) -> bool:
    """True for a floating-point type of `itemsize` bytes; False for PRNG keys."""
    if kind.itemsize != itemsize or not isinstance(kind.dtype, np.dtype):
        return False
    return kind.dtype.kind not in "iub"


def changes_width(op: Op, rule: OpRule) -> int:
    """1 for a conversion to a wider float type, -1 to a narrower one, 0 for all further ops."""
    if not rule.elementwise or len(op.operands) != 1 or len(op.results) != 1:
        return 0
    a, b = op.operands[0].type, op.results[0].type
    if a.shape != b.shape or not (is_float(a, a.itemsize) and is_float(b, b.itemsize)):
        return 0
    return (b.itemsize > a.itemsize) - (b.itemsize < a.itemsize)
