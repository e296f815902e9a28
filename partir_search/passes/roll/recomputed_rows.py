"""Rows of an array sliced inside of recomputed layers, sliced in front of the layers instead.

``jax.checkpoint(block)(h, params, i)`` slices ``params[i]`` in a region computed again by each
backward layer, and pads the row's gradient in the region. The forward layer has the same slice: the
region takes the row and returns the row's gradient, and the pad stands behind the region.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Hashable

from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.ir.role import Role
from partir_search.passes.fresh_names import FreshNames
from partir_search.passes.rewriter import Rewriter
from partir_search.passes.roll.row_ops import dim_of_row, place_of_row
from partir_search.rules.construct import NewOp, padded
from partir_search.rules.registry import role_of


def with_rows_outside(module: Module) -> Module:
    """Module with rows sliced and padded outside of recomputed regions; the same one without any.

    Inner regions come first: a row leaves all regions.
    """
    if not any(role_of(op) is Role.CHECKPOINT for op in module.ops):
        return module
    rewriter = _Rewriter(module)
    new = rewriter.run()
    return new if rewriter.found else module


class _Rewriter(Rewriter):
    """Rewriter of all regions of a module.

    Attributes:
      found: True after the first row outside.
    """

    def __init__(self, module: Module) -> None:
        super().__init__(module)
        self.found = False
        self._names = FreshNames(module)

    def ops(self, old: Region) -> list[Op]:
        done: list[Op] = []
        rows: dict[Hashable, Value] = {}  # by array and position: the row in the region
        for op in old.ops:
            new = self.op(op)
            if role_of(new) is Role.CHECKPOINT:
                done += self._outside(new, rows)
                continue
            done.append(new)
            if role_of(new) is Role.SLICE:
                rows.setdefault(_row(new.operands[0], new), new.results[0])
        return done

    def _outside(self, op: Op, rows: dict[Hashable, Value]) -> list[Op]:
        """A recomputed region with slices of rows in front and pads of rows behind."""
        (region,) = op.regions
        given = dict(zip(region.args, op.operands, strict=True))
        taken = {r: x for r in region.ops if (x := _sliced(r, given)) is not None}
        before: list[Op] = []
        for inner, x in taken.items():
            key = _row(x, inner)
            if key not in rows:
                made = NewOp(inner.prim, inner.handle, (x,), inner.params, inner.results[0].type)
                rows[key] = Value(-1, made.type, self._names(inner.results[0].name))
                before.append(made.at(inner, rows[key]))
            given[inner.results[0]] = rows[key]
        ops = tuple(inner for inner in region.ops if inner not in taken)
        results, outer, behind = list(region.results), list(op.results), list[Op]()
        pads = _padded(ops, region)
        for at, pad in pads.items():
            x = pad.operands[0]
            row = Value(-1, x.type, self._names(f"{op.results[at].name}_row"))
            made = padded(row, pad.operands[1], pad.params["padding_config"])
            behind.append(made.at(pad, outer[at]))
            results[at], outer[at] = x, row
        if not taken and not pads:
            return [op]
        self.found = True
        ops = tuple(inner for inner in ops if inner not in pads.values())
        read = {x for inner in ops for _, x in inner.inputs()} | set(results)
        kept = {arg: x for arg, x in given.items() if arg in read or arg not in region.args}
        fenced = op.params["prevent_cse"]
        whole = any(fenced) if isinstance(fenced, tuple) else fenced  # a tuple is by operand
        new = dataclasses.replace(
            op,
            operands=tuple(kept.values()),
            results=tuple(outer),
            regions=(Region(tuple(kept), ops, tuple(results)),),
            params={**op.params, "prevent_cse": whole},
            key=None,
        )
        return [*before, new, *behind]


def _row(x: Operand, op: Op) -> Hashable:
    """Array and position of a slice."""
    return x, *(tuple(op.params[k] or ()) for k in ("start_indices", "limit_indices", "strides"))


def _sliced(op: Op, given: dict[Value, Operand]) -> Operand | None:
    """The value outside of a region with a row taken by an op."""
    if role_of(op) is not Role.SLICE or not isinstance(op.operands[0], Value):
        return None
    row, whole = op.results[0].type.shape, op.operands[0].type.shape
    return None if dim_of_row(row, whole) is None else given.get(op.operands[0])


def _padded(ops: tuple[Op, ...], region: Region) -> dict[int, Op]:
    """By position, pads of single rows among the results of a region, without further readers."""
    read = [*(x for op in ops for _, x in op.inputs()), *region.results]
    readers = collections.Counter(x for x in read if isinstance(x, Value))
    makers = {r: op for op in ops for r in op.results}
    found: dict[int, Op] = {}
    for at, x in enumerate(region.results):
        pad = makers.get(x) if isinstance(x, Value) and readers[x] == 1 else None
        if pad is not None and place_of_row(pad) is not None:
            found[at] = pad
    return found
