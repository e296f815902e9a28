"""Casts of rows in place of casts of whole arrays, as in ``w.astype(bfloat16)[i]``.

A layer that casts the stack of all layers' weights, and slices its own row, has a gradient that
pads the row in the narrow type and casts the whole stack back. With the row cast, and the gradient
of the row, the layer reads and makes a row.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from partir_search.ir.core import Module, Op, Operand, Region, TensorType, Value
from partir_search.ir.role import Role
from partir_search.passes.fresh_names import FreshNames
from partir_search.passes.rewriter import Rewriter
from partir_search.passes.roll.row_ops import dim_of_row, place_of_row
from partir_search.rules.construct import NewOp, padded, zero
from partir_search.rules.registry import role_of


def with_rows_cast(module: Module) -> Module:
    """Module with casts of rows in place of casts of the rows' arrays; the same one without any."""
    if not any(role_of(op) is Role.CAST for op in module.ops):
        return module
    rewriter = _Rewriter(module)
    new = rewriter.run()
    return new if rewriter.found else module


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
        readers = _readers(old)
        rows: dict[Op, Op] = {}  # by slice or cast: the cast or pad that it changes places with
        for op in old.ops:
            x = op.operands[0] if op.operands else None
            maker = makers.get(x) if isinstance(x, Value) else None
            if maker is not None and _changes_places(op, maker, readers):
                rows[op] = maker
        if not rows:
            return list(super().ops(old))
        self.found = True
        dropped = set(rows.values())
        done: list[Op] = []
        for op in old.ops:
            if op in rows:
                done += self._row(op, rows[op])
            elif op not in dropped:
                done.append(self.op(op))
        return done

    def _row(self, op: Op, maker: Op) -> list[Op]:
        """A row and its cast in place of a row of a cast, or a padded cast of a cast pad."""
        (result,) = op.results
        source = self.operand(maker.operands[0])
        if role_of(op) is Role.SLICE:
            first = _like(op, source, dataclasses.replace(source.type, shape=result.type.shape))
            row = Value(-1, first.type, self._names(f"{result.name}_row"))
            last = _like(maker, row, result.type)
        else:
            first = _like(op, source, dataclasses.replace(result.type, shape=source.type.shape))
            row = Value(-1, first.type, self._names(f"{result.name}_row"))
            last = padded(row, zero(result.type), maker.params["padding_config"])
        return [first.at(op, row), last.at(op, self.value(result))]


def _readers(region: Region) -> dict[Value, list[Op | None]]:
    """Ops that read each value; None for the region's results."""
    found = collections.defaultdict[Value, list[Op | None]](list)
    for op in region.ops:
        for _, x in op.inputs():
            found[x].append(op)
    for x in region.results:
        if isinstance(x, Value):
            found[x].append(None)
    return found


def _changes_places(op: Op, maker: Op, readers: Mapping[Value, Sequence[Op | None]]) -> bool:
    """True for slices of one row of a cast that none else reads, and casts of one padded row.

    A cast read by rows of several layers is made once, before the layers, and stays there.
    """
    users = readers[maker.results[0]]
    if role_of(op) is Role.CAST:
        return len(users) == 1 and place_of_row(maker) is not None
    if role_of(op) is not Role.SLICE or role_of(maker) is not Role.CAST:
        return False
    if dim_of_row(op.results[0].type.shape, maker.results[0].type.shape) is None:
        return False
    return all(user is not None and _same_slice(user, op) for user in users)


def _same_slice(a: Op, b: Op) -> bool:
    return role_of(a) is Role.SLICE and a.params == b.params


def _like(op: Op, x: Operand, kind: TensorType) -> NewOp:
    """The computation of an op of one operand, on another one."""
    return NewOp(op.prim, op.handle, (x,), op.params, kind)
