"""Scatters of single elements (`XlaTraits.scatters_into_one_dim`).

A scatter with an index for each dim of an array of several dims writes an array of one dim. The
array of several dims lies in tiles, and is a copy.
"""

from __future__ import annotations

from collections.abc import Sequence

from partir_search.ir.core import Module, Op
from partir_search.ir.role import Role
from partir_search.ir.rule import OpRule


def element_scatters(module: Module, rules: Sequence[OpRule]) -> frozenset[int]:
    """Ids of the results of scatters of single elements into arrays of several dims.

    Args:
      rules: per op id.
    """
    found = (op for op in module.ops if _of_elements(op, rules[op.id]))
    return frozenset(r.id for op in found for r in op.results)


def _of_elements(op: Op, rule: OpRule) -> bool:
    """True if no dim of the updates is a window: a dim of the result without an index."""
    if rule.role is not Role.SCATTER or len(op.results) != 1 or len(rule.operands) != 3:
        return False
    _, indices, updates = map(set, rule.operands)
    large = [size for size in op.results[0].type.shape if size > 1]
    return len(large) > 1 and not (updates & set(rule.results[0])) - indices
