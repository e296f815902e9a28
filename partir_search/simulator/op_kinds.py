"""Kinds of ops by their kernels, and floating-point operations of an op."""

from __future__ import annotations

import math

from partir_search.ir.core import Op
from partir_search.ir.kind import Kind
from partir_search.ir.rule import OpRule


def is_pointwise(rule: OpRule) -> bool:
    """True for an elementwise op or a plain reduction, computed point by point."""
    return rule.elementwise or is_reduction(rule)


def is_reduction(rule: OpRule) -> bool:
    """True for a reduction of whole dims by a monoid that collectives combine."""
    return rule.kind is Kind.REDUCTION and not (rule.blocked or rule.local) and any(rule.reducers)


def op_flops(op: Op, rule: OpRule) -> float:
    """Floating-point operations of the unpartitioned op."""
    if not rule.flops_per_point:
        return 0.0
    sizes = rule.sizes or op.results[0].type.shape
    return rule.flops_per_point * math.prod(sizes)
