"""Look-ups at the number of each row as look-ups within rows.

``logits[jnp.arange(n), labels]`` reads an array at indices with one column equal to the row's
number. With the column's dim as a batching dim, as ``jnp.take_along_axis`` writes, rows are
independent. Updates at such indices (gradients, trees of a search) are rewritten likewise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.ir.role import Role
from partir_search.passes.rewriter import Rewriter
from partir_search.passes.views.constant_arrays import ConstantArrays
from partir_search.rules.construct import concatenated
from partir_search.rules.registry import role_of

INDEXED = frozenset({Role.GATHER, Role.SCATTER})


def with_row_lookups(module: Module) -> Module:
    """Module with look-ups and updates within rows, at every depth; the same one without any."""
    if not any(role_of(op) in INDEXED and _width(op) > 1 for op in module.ops):
        return module
    rewriter = _Rewriter(module)
    new = rewriter.run()
    return new if rewriter.found else module


def _width(op: Op) -> int:
    """Number of columns of the indices of a look-up or update."""
    return int(op.operands[1].type.shape[-1]) if op.operands[1].type.shape else 0


class _Rewriter(Rewriter):
    """Rewriter of all regions of a module.

    Attributes:
      found: True after the first rewritten op.
      entering: functions returning constant arrays by value of a region.
    """

    def __init__(self, module: Module) -> None:
        super().__init__(module)
        self.found = False
        self.entering: dict[Value, Callable[[], Any]] = {
            module.values[i]: partial(np.asarray, a) for i, a in module.constants.items()
        }

    def ops(self, old: Region) -> list[Op]:
        arrays = ConstantArrays(old, self.entering)
        makers = {r: op for op in old.ops for r in op.results}
        ops: list[Op] = []
        for op in old.ops:
            self.entering.update(arrays.entering(op))
            ops += self._within_rows(op, arrays, makers) or [self.op(op)]
        return ops

    def _within_rows(
        self, op: Op, arrays: ConstantArrays, makers: dict[Value, Op]
    ) -> list[Op] | None:
        """Ops of the indices within rows and of the look-up by them; None for any other op."""
        if role_of(op) not in INDEXED:
            return None
        names = _GATHER if role_of(op) is Role.GATHER else _SCATTER
        dn, (array, indices) = op.params["dimension_numbers"], op.operands[:2]
        mapped, dropped, batching = (getattr(dn, name) for name in names)
        columns = _columns(indices, makers)
        if len(columns) < 2 or len(columns) != len(mapped) or arrays.is_known(indices):
            return None
        rows: dict[int, int] = {}  # by dim of the array, that of the indices
        left: list[int] = []
        for k, d in enumerate(mapped):
            row = _row_dim(columns[k], arrays, makers) if d in dropped else None
            whole = row is not None and columns[k].type.shape[row] == array.type.shape[d]
            if row is None or not whole or row in (*rows.values(), *batching):
                left.append(k)
            else:
                rows[d] = row
        if not rows or not left:
            return None
        pairs = sorted([*zip(dn.operand_batching_dims, batching, strict=True), *rows.items()])
        dims = {
            names[0]: tuple(mapped[k] for k in left),
            names[1]: tuple(d for d in dropped if d not in rows),
            names[2]: tuple(row for _, row in pairs),
            "operand_batching_dims": tuple(d for d, _ in pairs),
        }
        kept = [self.operand(columns[k]) for k in left]
        made, ops = kept[0], list[Op]()
        if len(kept) > 1:
            joined = concatenated(kept, len(made.type.shape) - 1)
            made = Value(-1, joined.type, f"{op.results[0].name}_columns")
            ops.append(joined.at(op, made))
        params = {**op.params, "dimension_numbers": dn._replace(**dims)}
        params["indices_are_sorted"] = False
        new = self.op(op)
        operands = (new.operands[0], made, *new.operands[2:])
        self.found = True
        return [*ops, dataclasses.replace(new, operands=operands, params=params, key=None)]


# Dims of the array at indices, those absent from a slice, and batching dims of the indices.
_GATHER = ("start_index_map", "collapsed_slice_dims", "start_indices_batching_dims")
_SCATTER = (
    *("scatter_dims_to_operand_dims", "inserted_window_dims"),
    "scatter_indices_batching_dims",
)


def _columns(indices: Operand, makers: dict[Value, Op]) -> list[Operand]:
    """Columns of an array of indices, if laid side by side; else ()."""
    maker = makers.get(indices) if isinstance(indices, Value) else None
    if maker is None or role_of(maker) is not Role.CONCATENATION:
        return []
    last = len(indices.type.shape) - 1
    if maker.params["dimension"] != last or any(x.type.shape[last] != 1 for x in maker.operands):
        return []
    return list(maker.operands)


def _row_dim(x: Operand, arrays: ConstantArrays, makers: dict[Value, Op]) -> int | None:
    """Dim along which a column counts from 0; None if the column holds anything more.

    A broadcast counts as the operand does: the column of a large array need not be computed.
    """
    maker = makers.get(x) if isinstance(x, Value) else None
    if maker is not None and role_of(maker) is Role.BROADCAST:
        source = maker.operands[0]
        dim = _row_dim(source, arrays, makers)
        place = None if dim is None else int(maker.params["broadcast_dimensions"][dim])
        if dim is None or place is None or x.type.shape[place] != source.type.shape[dim]:
            return None
        return place
    found = arrays.array(x)
    for dim, n in enumerate(found.shape if found is not None else ()):
        shape = [1] * len(x.type.shape)
        shape[dim] = n
        if n > 1 and bool(np.all(found == np.arange(n).reshape(shape))):
            return dim
    return None
