"""Sums over iterations of products, to take outside of a scan.

Reverse-mode differentiation of a loop adds up the gradient of each constant in a carry: in every
iteration a product of few rows reads and writes all of the gradient. Over the stacks of
both operands the sum is one product, reduced once over devices with data parallelism.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from partir_search.ir.core import Op, Value
from partir_search.ir.role import Role
from partir_search.passes.loop_products.body import Body
from partir_search.passes.loop_products.outside import Total
from partir_search.passes.loop_products.stacks import Stacks
from partir_search.passes.roll.added import terms_of
from partir_search.rules.registry import role_of

_WIDE = 4  # bytes of the elements of sums: a narrower one is rounded in each iteration


def totals_outside(body: Body, budget: int, devices: int) -> tuple[list[Total], Stacks]:
    """Carries to compute outside of the scan, and the values to stack.

    Rows pay if a share of one of `devices` devices takes no more bytes than the products in the
    loop: all rows for all products, or the rows of a product for this one. The rows of all stacks
    take at most `budget` bytes.
    """
    found = {t.number: t for n in body.added if (t := _total(body, n)) is not None}
    totals, stacks = _chosen(body, found, budget, None)
    products = {x: op for total in totals for x, op in total.products.items()}
    if budget - stacks.left > devices * sum(x.type.nbytes for x in products):
        totals, stacks = _chosen(body, found, budget, devices)
    return totals, stacks


def _chosen(
    body: Body, found: Mapping[int, Total], budget: int, devices: int | None
) -> tuple[list[Total], Stacks]:
    """Carries with rows within the budget; given `devices`, with rows that pay by product."""
    while found:
        stacks = Stacks(body, budget)
        leaving = {
            op
            for op in sorted(_leaving(body, found), key=body.region.ops.index)
            if stacks.add((x for _, x in op.inputs()), worth=_worth(op, devices))
        }
        kept = {
            number: total
            for number, total in found.items()
            if leaving.issuperset(total.products.values()) and stacks.add(total.rows)
        }
        if not any(total.products for total in kept.values()):
            break
        if len(kept) == len(found):
            return list(kept.values()), stacks
        found = kept
    return [], Stacks(body, budget)


def _worth(op: Op, devices: int | None) -> int | None:
    return None if devices is None else devices * op.results[0].type.nbytes


def _total(body: Body, number: int) -> Total | None:
    """A carry as a linear function of sums; None if terms are not arrays, or narrow."""
    carry = body.region.args[body.consts + number]
    if not jnp.issubdtype(carry.type.dtype, np.inexact) or carry.type.itemsize < _WIDE:
        return None
    terms = terms_of(carry, body.added[number].additions)
    if not terms or any(body.is_constant(x) for x in terms):
        return None
    linear, products = set[Op](), dict[Value, Op]()
    rows, constants = dict[Value, None](), dict[Value, None]()
    todo, seen = list(terms), set[Value]()
    while todo:
        x = todo.pop()
        if x in seen:
            continue
        seen.add(x)
        op = body.makers.get(x)
        if op is not None and body.is_late(op) and _is_product(body, op):
            products[x] = op
        elif op is not None and body.is_late(op) and _is_linear(body, op):
            linear.add(op)
            constants.update((v, None) for _, v in op.inputs() if body.is_constant(v))
            todo += [v for _, v in op.inputs() if not body.is_constant(v)]
        else:
            rows[x] = None
    ordered = tuple(op for op in body.region.ops if op in linear)
    return Total(number, terms, products, tuple(rows), ordered, tuple(constants))


def _is_linear(body: Body, op: Op) -> bool:
    """True for an op linear in the operands that differ between iterations."""
    if len(op.results) != 1 or not body.batches(op):
        return False
    varying = tuple(i for i, x in op.inputs() if not body.is_constant(x))
    known = [x for _, x in op.inputs() if body.is_constant(x)]
    return varying in body.rule(op).linear and all(map(body.derives, known))


def _is_product(body: Body, op: Op) -> bool:
    """True for a product of two values, both unlike between iterations."""
    if role_of(op) is not Role.DOT or len(op.inputs()) != 2 or not body.batches(op):
        return False
    return not any(body.is_constant(x) for _, x in op.inputs())


def _leaving(body: Body, totals: Mapping[int, Total]) -> set[Op]:
    """Products without readers in the loop once `totals` are computed outside."""
    gone = {op for n in totals for op in body.added[n].additions}
    for op in reversed(body.region.ops):
        if body.is_late(op) and all(x in gone for r in op.results for x in body.readers.get(r, ())):
            gone.add(op)
    return gone.intersection(op for t in totals.values() for op in t.products.values())
