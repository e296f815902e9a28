"""Rows of one array sliced by layer, as ``w[i]`` or ``w[..., i]`` in a Python loop over layers.

The gradient of a slice pads by the number of the layer, and so no two backward layers are equal.
With the rows taken apart in front of the layers, and rows of the gradient stacked behind, each
layer reads and makes a row; of a row sliced several times, rows of the gradient are added.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from partir_search.ir.core import Module, Op, Region, Value
from partir_search.ir.role import Role
from partir_search.passes.fresh_names import FreshNames
from partir_search.passes.rewriter import Rewriter
from partir_search.passes.roll.row_ops import dim_of_row, place_of_row
from partir_search.rules.construct import added, reshaped, transposed
from partir_search.rules.registry import role_of
from partir_search.rules.stacks import stacked_layers, unstacked_layers

LEAST_ROWS = 3  # slices of halves of an array are no rows of layers


def with_rows_apart(module: Module) -> Module:
    """Module with arrays sliced whole by layer as rows; the same one without any."""
    if not any(role_of(op) is Role.SLICE for op in module.ops):
        return module
    rewriter = _Rewriter(module)
    new = rewriter.run()
    return new if rewriter.found else module


@dataclasses.dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one array, or of the sum of padded rows.

    Attributes:
      dim: the dim of rows.
      ops: slices or pads of each row, in order of rows.
      near: the first slice, or the last addition.
      between: additions before the last.
    """

    dim: int
    ops: Sequence[Sequence[Op]]
    near: Op
    between: Sequence[Op] = ()


class _Rewriter(Rewriter):
    """Rewriter of all regions of a module.

    Attributes:
      found: True after the first array with rows apart.
    """

    def __init__(self, module: Module) -> None:
        super().__init__(module)
        self.found = False
        self._names = FreshNames(module)
        self._taken: dict[Op, Value] = {}  # by first slice or pad of a row: the row

    def ops(self, old: Region) -> list[Op]:
        sliced = _sliced(old)
        shapes = {(x.type.shape, rows.dim) for x, rows in sliced.items()}
        totals = {rows.near: rows for rows in _totals(old) if _kind(rows) in shapes}
        if not sliced or not totals:
            return list(super().ops(old))
        self.found = True
        dims = {
            op: (rows.dim, ops[0])
            for rows in (*sliced.values(), *totals.values())
            for ops in rows.ops
            for op in ops
        }
        dropped = {op for rows in totals.values() for op in rows.between}
        done = [op for x in old.args if x in sliced for op in self._apart(x, sliced[x])]
        joined: dict[Value, list[Op]] = {}  # by total, until its first reader
        for op in old.ops:
            if op in dropped:
                continue
            if joined:
                for _, x in op.inputs():
                    done += joined.pop(x, ())
            if op in totals:
                (total,) = op.results
                further = self._apart(total, sliced[total]) if total in sliced else []
                joined[total] = [*self._joined(op, totals[op]), *further]
                continue
            if op in dims:
                done += self._row(op, *dims[op])
            else:
                done.append(self.op(op))
            made = [x for x in op.results if x in sliced]
            done += [new for x in made for new in self._apart(x, sliced[x])]
        return [*done, *(op for ops in joined.values() for op in ops)]

    def _apart(self, x: Value, rows: _Rows) -> list[Op]:
        """Ops that take an array apart, with results by slice in `_taken`."""
        source, done = self.value(x), list[Op]()
        if rows.dim:
            rank = range(len(x.type.shape))
            made = transposed(source, (rows.dim, *(d for d in rank if d != rows.dim)))
            source = Value(-1, made.type, self._names(f"{x.name}_rows"))
            done.append(made.at(rows.near, source))
        kind = dataclasses.replace(x.type, shape=source.type.shape[1:])
        results = [Value(-1, kind, self._names(f"{x.name}_row")) for _ in rows.ops]
        self._taken.update(zip((ops[0] for ops in rows.ops), results, strict=True))
        return [*done, unstacked_layers(source, results, rows.near)]

    def _row(self, op: Op, dim: int, first: Op) -> list[Op]:
        """The reshape of a row in place of a slice, or to a row in place of a pad.

        Args:
          first: the first slice or pad of the row; further pads add to the row of the first.
        """
        if role_of(op) is Role.SLICE:
            (result,) = op.results
            return [reshaped(self._taken[first], result.type.shape).at(op, self.value(result))]
        x = self.operand(op.operands[0])
        made = reshaped(x, [n for d, n in enumerate(x.type.shape) if d != dim])
        row = Value(-1, made.type, self._names(f"{op.results[0].name}_row"))
        done = [made.at(op, row)]
        if first in self._taken:
            total = added(self._taken[first], row)
            row = Value(-1, made.type, self._names(f"{op.results[0].name}_rows"))
            done.append(total.at(op, row))
        self._taken[first] = row
        return done

    def _joined(self, addition: Op, rows: _Rows) -> list[Op]:
        """The stack of rows in place of the last addition, behind the last layer."""
        (result,) = addition.results
        parts = [self._taken[ops[0]] for ops in rows.ops]
        shape = (len(parts), *parts[0].type.shape)
        if not rows.dim:
            return [stacked_layers(parts, self.value(result), addition)]
        kind = dataclasses.replace(result.type, shape=shape)
        stack = Value(-1, kind, self._names(f"{result.name}_rows"))
        order = [*range(1, rows.dim + 1), 0, *range(rows.dim + 1, len(shape))]
        made = transposed(stack, order).at(addition, self.value(result))
        return [stacked_layers(parts, stack, addition), made]


def _kind(rows: _Rows) -> tuple[tuple[int, ...], int]:
    return rows.near.results[0].type.shape, rows.dim


def _sliced(region: Region) -> dict[Value, _Rows]:
    """Arrays of a region that slices of the forward pass take apart, row by row."""
    found: dict[tuple[Value, int], list[Op]] = {}
    for op in region.ops:
        x = op.operands[0] if op.operands else None
        if role_of(op) is Role.SLICE and not op.backward and isinstance(x, Value):
            dim = dim_of_row(op.results[0].type.shape, x.type.shape)
            if dim is not None:
                found.setdefault((x, dim), []).append(op)
    rows: dict[Value, _Rows] = {}
    for (x, dim), ops in found.items():
        known = collections.defaultdict[int, list[Op]](list)
        for op in ops:
            known[op.params["start_indices"][dim]].append(op)
        if len(known) >= LEAST_ROWS and sorted(known) == list(range(x.type.shape[dim])):
            rows[x] = _Rows(dim, [known[i] for i in sorted(known)], ops[0])
    return rows


def _totals(region: Region) -> list[_Rows]:
    """Sums of all rows padded by zeros."""
    makers = {r: op for op in region.ops for r in op.results}
    read = [*(x for op in region.ops for _, x in op.inputs()), *region.results]
    readers = collections.Counter(x for x in read if isinstance(x, Value))
    found: list[_Rows] = []
    seen, at = set[Op](), {op: i for i, op in enumerate(region.ops)}
    for op in reversed(region.ops):
        if role_of(op) is not Role.ADDITION or op in seen:
            continue
        leaves, between = _leaves(op, makers, readers)
        seen.update(between)
        known = collections.defaultdict[int, list[Op]](list)
        dims = set[int | None]()
        for leaf in leaves:
            place = None if leaf is None else place_of_row(leaf)
            dims.add(None if place is None else place[1])
            if leaf is not None and place is not None:
                known[place[0]].append(leaf)
        if len(dims) != 1:
            continue
        (dim,) = dims
        if dim is None:
            continue
        if len(known) >= LEAST_ROWS and sorted(known) == list(range(op.results[0].type.shape[dim])):
            in_order = [sorted(known[i], key=lambda pad: at[pad]) for i in sorted(known)]
            found.append(_Rows(dim, in_order, op, between))
    return found


def _leaves(
    addition: Op, makers: Mapping[Value, Op], readers: Mapping[Value, int]
) -> tuple[list[Op | None], list[Op]]:
    """Makers of the summands of a chain of additions, and the additions before the last."""
    leaves: list[Op | None] = []
    between: list[Op] = []
    todo = [addition]
    while todo:
        for x in todo.pop().operands:
            maker = makers.get(x) if isinstance(x, Value) and readers[x] == 1 else None
            if maker is not None and role_of(maker) is Role.ADDITION:
                between.append(maker)
                todo.append(maker)
            else:
                leaves.append(maker)
    return leaves, between
