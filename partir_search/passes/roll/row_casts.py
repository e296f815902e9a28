"""Casts of rows in place of casts of whole arrays, as in ``w.astype(bfloat16)[i]``.

A layer that casts the stack of all layers' weights, and slices its own row, has a gradient that
pads the row in the narrow type and casts the whole stack back. With the row cast, and the gradient
of the row, the layer reads and makes a row. Pads of one row stand behind additions, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from partir_search.ir.analysis.readers import readers_of
from partir_search.ir.core import Module, Op, Region, Value
from partir_search.ir.role import Role
from partir_search.passes.fresh_names import FreshNames
from partir_search.passes.rewriter import Rewriter
from partir_search.passes.roll.row_ops import dim_of_row, place_of_row
from partir_search.rules.construct import NewOp, padded, zero
from partir_search.rules.registry import role_of


def with_rows_cast(module: Module) -> Module:
    """Module with casts of rows in place of casts of the rows' arrays; the same one without any."""
    while any(role_of(op) is Role.CAST for op in module.ops):
        rewriter = _Rewriter(module)
        new = rewriter.run()
        if not rewriter.found:
            break
        module = new  # a cast moves in front of a pad, and then of the next
    return module


class _Rewriter(Rewriter):
    """Rewriter of all regions of a module.

    Attributes:
      found: True after the first row cast.
    """

    def __init__(self, module: Module) -> None:
        super().__init__(module)
        self.found = False
        self._names = FreshNames(module)

    def ops(self, old: Region) -> list[Op]:
        makers = {r: op for op in old.ops for r in op.results}
        readers = readers_of(old)
        rows: dict[Op, tuple[Op, ...]] = {}  # by op, the makers that it changes places with
        for op in old.ops:
            values = [x for x in op.operands if isinstance(x, Value) and x in makers]
            before = tuple([makers[x] for x in values])
            if before and len(before) == len(op.operands) and _changes_places(op, before, readers):
                rows[op] = before
        if not rows:
            return list(super().ops(old))
        self.found = True
        dropped = {maker for before in rows.values() for maker in before}
        done: list[Op] = []
        for op in old.ops:
            if op in rows:
                done += self._row(op, rows[op])
            elif op not in dropped:
                done.append(self.op(op))
        return done

    def _row(self, op: Op, before: Sequence[Op]) -> list[Op]:
        """A cast row in place of a row of a cast; a pad behind an op in place of pads before."""
        (result,), maker = op.results, before[0]
        sources = [self.operand(m.operands[0]) for m in before]
        shape = result.type.shape if role_of(op) is Role.SLICE else sources[0].type.shape
        dtype = sources[0].type if role_of(op) is Role.SLICE else result.type
        kind = dataclasses.replace(dtype, shape=shape)
        row = Value(-1, kind, self._names(f"{result.name}_row"))
        first = NewOp(op.prim, op.handle, tuple(sources), op.params, kind)
        if role_of(op) is Role.SLICE:
            last = NewOp(maker.prim, maker.handle, (row,), maker.params, result.type)
        else:
            last = padded(row, zero(result.type), maker.params["padding_config"])
        return [first.at(op, row), last.at(op, self.value(result))]


def _changes_places(
    op: Op, before: Sequence[Op], readers: Mapping[Value, Sequence[Op | None]]
) -> bool:
    """True for slices of one row of a cast, and casts and additions of padded rows.

    A slice of a cast that rows of several layers read stays behind: the cast is made once, before
    the layers.
    """
    maker, users = before[0], readers.get(before[0].results[0], ())
    if role_of(op) in (Role.CAST, Role.ADDITION):
        place = place_of_row(maker)
        alike = all(place_of_row(m) == place for m in before)
        return place is not None and alike and all(len(readers[m.results[0]]) == 1 for m in before)
    if role_of(op) is not Role.SLICE or role_of(maker) is not Role.CAST:
        return False
    if dim_of_row(op.results[0].type.shape, maker.results[0].type.shape) is None:
        return False
    return all(user is not None and _same_slice(user, op) for user in users)


def _same_slice(a: Op, b: Op) -> bool:
    return role_of(a) is Role.SLICE and a.params == b.params
