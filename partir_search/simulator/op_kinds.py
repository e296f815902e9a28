"""Kinds of ops by their kernels, and floating-point operations of an op."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from partir_search.ir.core import Op
from partir_search.ir.kind import Kind
from partir_search.ir.rule import OpRule


def is_pointwise(rule: OpRule) -> bool:
    """True for an elementwise op or a plain reduction, computed point by point."""
    return rule.elementwise or is_reduction(rule)


def is_reduction(rule: OpRule) -> bool:
    """True for a reduction of whole dims by any function; False for pools and a user's kernel."""
    if rule.kind is not Kind.REDUCTION or rule.local:
        return False
    read = {f for dims in rule.operands for f in dims}
    return any(reducer and f in read for f, reducer in enumerate(rule.reducers))


def is_batched(rule: OpRule) -> bool:
    """True if some factor of several points is a dim of all operands and of all results."""
    factors = [set(dims) for dims in (*rule.operands, *rule.results)]
    return any(f >= 0 and rule.sizes[f] > 1 for f in set.intersection(*factors))


def is_tuple_reduction(op: Op, rule: OpRule) -> bool:
    """True for a reduction that accumulates several elements: argmax, a reduce of two arrays."""
    if not is_reduction(rule):
        return False
    return len(op.results) > 1 or op.results[0].type.dtype != op.operands[0].type.dtype


def op_flops(op: Op, rule: OpRule) -> float:
    """Floating-point operations of the unpartitioned op."""
    if not rule.flops_per_point:
        return 0.0
    sizes = rule.sizes or op.results[0].type.shape
    return rule.flops_per_point * math.prod(sizes)


def total_flops(ops: Iterable[Op], rule_of: Callable[[Op], OpRule]) -> float:
    """Floating-point operations of unpartitioned ops, loops inside of ops included."""
    found = 0.0
    for op in ops:
        inner = sum(total_flops(region.ops, rule_of) for region in op.regions)
        trips = int(op.params.get("length", 1))
        found += trips * inner if op.regions else op_flops(op, rule_of(op))
    return found
