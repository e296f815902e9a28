"""Products of rows with constants, to take outside of a scan.

Products of stacked operands alone are known before the scan; products behind stacked results alone
are computed after the scan. In the loop each iteration reads the constants again for few rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from partir_search.ir.core import Op, Value
from partir_search.passes.loop_products.body import Body
from partir_search.passes.loop_products.stacks import Stacks


def rows_before(body: Body, left: int) -> list[Value]:
    """Products to compute before the scan, read by iterations as rows.

    A product pays if a row takes no more bytes than the constants and the rows that are read. All
    products of a row take at most `left` bytes.
    """
    found, gone = list[Value](), set[Op]()
    for op in reversed(body.region.ops):
        weight = body.weight(op)
        if op in gone or weight is None or not body.is_early(weight[0]):
            continue
        ops = body.ops_behind(op.results)
        products = [x for x in ops if body.rule(x).contracts and x not in gone]
        if not all(map(body.batches, ops)):
            continue
        size = sum(x.results[0].type.nbytes for x in products)
        constants = sum(w[1].type.nbytes for x in products if (w := body.weight(x)) is not None)
        if size <= left and op.results[0].type.nbytes <= constants + weight[0].type.nbytes:
            found.append(op.results[0])
            left -= size
            gone.update(products)
    return found


def rows_after(body: Body, stacks: Stacks) -> list[Value]:
    """Stacked results to compute after the scan; adds the values to stack to `stacks`.

    The products of a row, with the new rows, take at most the bytes left.
    """
    found = list[Value]()
    for y in dict.fromkeys(body.rows):
        ops, rows = _after(body, y)
        products = [op for op in ops if body.rule(op).contracts]
        if not products or not _leaves(body, y, ops):
            continue
        between = sum(op.results[0].type.nbytes for op in products) - y.type.nbytes
        constants = sum(w[1].type.nbytes for op in products if (w := body.weight(op)) is not None)
        if stacks.add(rows, between, worth=constants + y.type.nbytes):
            found.append(y)
    return found


def _after(body: Body, y: Value) -> tuple[list[Op], list[Value]]:
    """Ops of a stacked result down to the products, and the varying operands of the products."""
    ops, rows, todo, seen = set[Op](), dict[Value, None](), [y], set[Value]()
    while todo:
        value = todo.pop()
        maker = body.makers.get(value)
        if value in seen:
            continue
        seen.add(value)
        if body.is_constant(value):
            if not body.derives(value):
                return [], []
            continue
        if maker is None or not body.is_late(maker) or not body.batches(maker):
            rows[value] = None
            continue
        ops.add(maker)
        weight = body.weight(maker)
        if weight is not None:
            rows[weight[0]] = None
        elif body.rule(maker).contracts:
            return [], []
        else:
            todo += [x for _, x in maker.inputs()]
    return [op for op in body.region.ops if op in ops], list(rows)


def _leaves(body: Body, y: Value, ops: Sequence[Op]) -> bool:
    """True if no op but `ops` reads a result of `ops`; the stack of `y` is read outside."""
    inside = set(ops)
    for op in ops:
        for r in op.results:
            readers = body.readers.get(r, ())
            if any(x not in inside for x in readers if x is not None):
                return False
            if None in readers and r is not y:
                return False
    return body.region.results.count(y) == 1
