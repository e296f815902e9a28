"""Operands and results of all ops as arrays."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from partir_search.ir.core import Module, Value
from partir_search.ir.rule import NONE, Dims, OpRule

Places = npt.NDArray[np.int32]


@dataclasses.dataclass(frozen=True, slots=True)
class Ports:
    """Operands and results of all ops, as arrays over ports.

    Under factor f (or NONE) of its op, port p has its value tiled on dim ``dim[start[p] + f + 1]``
    and leaves ``unfinished[start[p] + f + 1]`` in the value: 0 nothing, 1 a sum, 2 another
    reduction.

    Attributes:
      op / value: ids.
      result: True for results.
    """

    op: Places
    value: Places
    result: npt.NDArray[np.bool_]
    start: Places
    dim: npt.NDArray[np.int8]
    unfinished: npt.NDArray[np.int8]

    def only(self, which: npt.NDArray[np.bool_]) -> Ports:
        """Ports selected by a mask."""
        return dataclasses.replace(
            self,
            op=self.op[which],
            value=self.value[which],
            result=self.result[which],
            start=self.start[which],
        )


def ports_of(module: Module, rules: Sequence[OpRule]) -> Ports:
    """Ports of all ops without regions.

    Args:
      rules: per op id.
    """
    op_of, value, start = array("i"), array("i"), array("i")  # about four per op: lists are large
    result = array("b")
    dim: list[int] = []
    unfinished: list[int] = []
    tables: dict[tuple[object, ...], int] = {}

    def table(rule: OpRule, dims: Dims, made: bool) -> int:
        key = (dims, rule.reducers, rule.major_factors, made)
        if key not in tables:
            tables[key] = len(dim)
            found = [rule.dim_of(dims, f) for f in range(len(rule.sizes))]
            left = [1 if monoid == "sum" else 2 for monoid in rule.reducers]
            dim.extend([NONE, *found])
            pairs = zip(found, left, strict=True)
            unfinished.extend([0, *(n if made and d < 0 else 0 for d, n in pairs)])
        return tables[key]

    starts: dict[int, tuple[list[int], list[int]]] = {}  # by rule: many ops share one
    for op, rule in zip(module.ops, rules, strict=True):
        if op.regions:
            continue
        known = starts.get(id(rule))
        if known is None:
            read = [table(rule, dims, False) for dims in rule.operands]
            known = starts[id(rule)] = read, [table(rule, dims, True) for dims in rule.results]
        read, made = known
        for x, at in zip(op.operands, read, strict=True):
            if isinstance(x, Value):
                value.append(x.id)
                start.append(at)
                op_of.append(op.id)
                result.append(False)
        for r, at in zip(op.results, made, strict=True):
            value.append(r.id)
            start.append(at)
            op_of.append(op.id)
            result.append(True)
    return Ports(
        np.array(op_of, dtype=np.int32),
        np.array(value, dtype=np.int32),
        np.array(result, dtype=np.bool_),
        np.array(start, dtype=np.int32),
        np.array(dim, dtype=np.int8),
        np.array(unfinished, dtype=np.int8),
    )
