"""Sums over iterations of products, to take outside of a scan.

Reverse-mode differentiation of a loop adds up the gradient of each constant in a carry: in every
iteration a product of few rows, which reads and writes all of the gradient. Over the stacks of
both operands the sum is one product, reduced once over devices with data parallelism.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from partir_search.ir.core import Op, Value
from partir_search.ir.role import Role
from partir_search.passes.loop_products.body import Body
from partir_search.passes.loop_products.outside import Term, Total
from partir_search.passes.roll.added import terms_of
from partir_search.rules.registry import role_of

_WIDE = 4  # bytes of the elements of sums: a narrower one is rounded in each iteration


def totals_outside(body: Body, budget: int) -> tuple[list[Total], list[Value]]:
    """Carries to compute outside of the scan, and the values to stack for these.

    A stack pays if an iteration's row takes no more bytes than the product in the loop. The rows of
    all stacks take at most `budget` bytes.
    """
    found = {t.number: t for n in body.added if (t := _total(body, n)) is not None}
    while True:
        leaving = _leaving(body, found)
        stacks, left = dict[Value, None](), budget
        kept = dict[int, Total]()
        products = sorted(leaving, key=body.region.ops.index)
        for op in products:
            rows = [x for _, x in op.inputs() if x not in stacks and not body.derives(x)]
            size = sum(x.type.nbytes for x in dict.fromkeys(rows))
            if size <= min(left, op.results[0].type.nbytes):
                stacks.update(dict.fromkeys(rows))
                left -= size
            else:
                leaving.discard(op)
        for number, total in found.items():
            rows = [
                x.source
                for x in total.terms
                if x.product is None and x.source not in stacks and not body.derives(x.source)
            ]
            size = sum(x.type.nbytes for x in dict.fromkeys(rows))
            if all(x.product in leaving for x in total.terms if x.product) and size <= left:
                stacks.update(dict.fromkeys(rows))
                left -= size
                kept[number] = total
        if not any(term.product for total in kept.values() for term in total.terms):
            return [], []
        if len(kept) == len(found):
            return list(kept.values()), list(stacks)
        found = kept


def _total(body: Body, number: int) -> Total | None:
    """A carry as a sum of terms; None if the terms are not linear functions of rows."""
    carry = body.region.args[body.consts + number]
    dtype = carry.type.dtype
    if not jnp.issubdtype(dtype, np.inexact) or carry.type.itemsize < _WIDE:
        return None
    terms = terms_of(carry, body.added[number].additions)
    return Total(number, tuple(_term(body, x) for x in terms)) if terms else None


def _term(body: Body, x: Value) -> Term:
    """A term as a linear function of a product, or of the first value that is none."""
    chain = list[Op]()
    while (op := body.makers.get(x)) is not None and body.is_late(op):
        if _is_product(body, op):
            return Term(op, x, tuple(reversed(chain)))
        inputs = op.inputs()
        if len(inputs) != 1 or len(op.results) != 1 or not body.batches(op):
            break
        if (inputs[0][0],) not in body.rule(op).linear:
            break
        chain.append(op)
        x = inputs[0][1]
    return Term(None, x, tuple(reversed(chain)))


def _is_product(body: Body, op: Op) -> bool:
    """True for a product of two values that differ between iterations."""
    if role_of(op) is not Role.DOT or len(op.inputs()) != 2 or not body.batches(op):
        return False
    return not any(body.is_constant(x) for _, x in op.inputs())


def _leaving(body: Body, totals: dict[int, Total]) -> set[Op]:
    """Products without readers in the loop once `totals` are computed outside."""
    gone = {op for n in totals for op in body.added[n].additions}
    terms = [term for total in totals.values() for term in total.terms]
    for op in reversed(body.region.ops):
        if body.is_late(op) and all(x in gone for r in op.results for x in body.readers.get(r, ())):
            gone.add(op)
    return {term.product for term in terms if term.product in gone and term.product is not None}
