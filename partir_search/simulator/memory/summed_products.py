"""Sums of products that the compiler adds up one by one.

A product whose only reader adds the product to a sum of earlier products is the kernel of the
addition: the total is stored, and takes the place of the earlier total
(`XlaTraits.adds_products_in_place`).
"""

from __future__ import annotations

from collections.abc import Sequence

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Module, Op
from partir_search.ir.role import Role
from partir_search.ir.rule import OpRule


def summed_products(module: Module, rules: Sequence[OpRule]) -> frozenset[int]:
    """Ids of sums of a product and of a sum or product before, with one reader each.

    Args:
      rules: per op id.
    """
    uses = def_use(module)
    products, found = set[int](), set[int]()
    for op in module.ops:
        rule = rules[op.id]
        if op.regions or len(op.results) != 1:
            continue
        (result,) = op.results
        if uses.counts[result.id] != 1 or result.id in uses.returned:
            continue
        inputs = [v.id for _, v in op.inputs()]
        if rule.role is Role.DOT:
            products.add(result.id)
        elif rule.elementwise and products.issuperset(inputs):
            if len(inputs) == 2 and _adds(op, rule):
                products.add(result.id)
                found.add(result.id)
            elif len(inputs) == 1 and _of_one(op, rule):
                products.add(result.id)
    return frozenset(found)


def _adds(op: Op, rule: OpRule) -> bool:
    """True for a sum of two values of equal types."""
    both = bool(rule.linear) and rule.linear[0] == (0, 1) and len(op.operands) == 2
    return both and op.operands[0].type == op.operands[1].type


def _of_one(op: Op, rule: OpRule) -> bool:
    """True for a move, and for cheap arithmetic of one value and scalars in the value's type."""
    (value,) = (v for _, v in op.inputs())
    return rule.moves or (value.type == op.results[0].type and not rule.expensive)
