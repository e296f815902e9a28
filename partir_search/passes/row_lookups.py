"""Look-ups of one element per row as look-ups within rows.

``logits[jnp.arange(n), labels]`` reads an array at indices with one column equal to the row's
number. With the column's dim as a batching dim, as ``jnp.take_along_axis`` writes, rows are
independent. Updates at such indices (the gradients) are rewritten likewise.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.ir.role import Role
from partir_search.passes.rewriter import Rewriter
from partir_search.passes.views.constant_arrays import ConstantArrays
from partir_search.rules.construct import concatenated
from partir_search.rules.registry import role_of


def with_row_lookups(module: Module) -> Module:
    """Module with the look-ups and updates of its body within rows; the same one without any."""
    rewriter = _Rewriter(module)
    new = rewriter.run()
    return new if rewriter.found else module


class _Rewriter(Rewriter):
    """Rewriter of a module's body.

    Attributes:
      found: True after the first rewritten op.
    """

    def __init__(self, module: Module) -> None:
        super().__init__(module)
        self.found = False

    def ops(self, old: Region) -> list[Op]:
        if old is not self.module.body:
            return [self.op(op) for op in old.ops]
        values = {self.module.values[i]: a for i, a in self.module.constants.items()}
        arrays = ConstantArrays(old, {v: lambda a=a: a for v, a in values.items()})  # type: ignore[misc]
        makers = {r: op for op in old.ops for r in op.results}
        ops: list[Op] = []
        for op in old.ops:
            ops += self._within_rows(op, arrays, makers) or [self.op(op)]
        return ops

    def _within_rows(
        self, op: Op, arrays: ConstantArrays, makers: dict[Value, Op]
    ) -> list[Op] | None:
        """Ops of the indices within rows and of the look-up by them; None for any other op."""
        gathers = role_of(op) is Role.GATHER
        if not gathers and role_of(op) is not Role.SCATTER:
            return None
        dn, (array, indices) = op.params["dimension_numbers"], op.operands[:2]
        columns = _columns(indices, makers)
        mapped = dn.start_index_map if gathers else dn.scatter_dims_to_operand_dims
        dropped = dn.collapsed_slice_dims if gathers else dn.inserted_window_dims
        if len(columns) < 2 or len(columns) != len(mapped) or dn.operand_batching_dims:
            return None
        for k, d in enumerate(mapped):
            row = _row_dim(columns[k], arrays) if d in dropped else None
            if row is None or columns[k].type.shape[row] != array.type.shape[d]:
                continue
            left = [self.operand(x) for i, x in enumerate(columns) if i != k]
            dims = {
                "start_index_map" if gathers else "scatter_dims_to_operand_dims": (
                    *mapped[:k],
                    *mapped[k + 1 :],
                ),
                "collapsed_slice_dims" if gathers else "inserted_window_dims": tuple(
                    i for i in dropped if i != d
                ),
                "operand_batching_dims": (d,),
                "start_indices_batching_dims" if gathers else "scatter_indices_batching_dims": (
                    row,
                ),
            }
            made, ops = left[0], list[Op]()
            if len(left) > 1:
                joined = concatenated(left, len(made.type.shape) - 1)
                made = Value(-1, joined.type, f"{op.results[0].name}_columns")
                ops.append(joined.at(op, made))
            params = {**op.params, "dimension_numbers": dn._replace(**dims)}
            params["indices_are_sorted"] = False
            new = self.op(op)
            operands = (new.operands[0], made, *new.operands[2:])
            self.found = True
            return [*ops, dataclasses.replace(new, operands=operands, params=params, key=None)]
        return None


def _columns(indices: Operand, makers: dict[Value, Op]) -> list[Operand]:
    """Columns of an array of indices, if laid side by side; else ()."""
    maker = makers.get(indices) if isinstance(indices, Value) else None
    if maker is None or role_of(maker) is not Role.CONCATENATION:
        return []
    last = len(indices.type.shape) - 1
    if maker.params["dimension"] != last or any(x.type.shape[last] != 1 for x in maker.operands):
        return []
    return list(maker.operands)


def _row_dim(column: Operand, arrays: ConstantArrays) -> int | None:
    """Dim along which a column counts from 0; None if the column holds anything more."""
    found = arrays.array(column)
    for dim, n in enumerate(found.shape[:-1] if found is not None else ()):
        shape = [1] * len(column.type.shape)
        shape[dim] = n
        if n > 1 and bool(np.all(found == np.arange(n).reshape(shape))):
            return dim
    return None
