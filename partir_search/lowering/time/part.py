"""Ops on one part of a batch, written into a loop over parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from partir_search.ir.core import Op, Operand, Value
from partir_search.ir.from_jaxpr import FunctionReader
from partir_search.ir.local_op import run_local
from partir_search.ir.partition import Partition
from partir_search.ir.parts import Parts
from partir_search.lowering.local_ir import LocalOp
from partir_search.lowering.time.cut import PartsMeet
from partir_search.lowering.time.kinds import Meeting


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """`LocalContext` of one part.

    Attributes:
      factor: the op's factor split into parts.
      part: number of the part, an int32 scalar.
    """

    partition: Partition
    op: Op
    factor: int
    parts: Parts
    part: Any
    mesh: None = None

    def tiles(self, factor: int) -> int:
        return self.parts.count if factor == self.factor else 1

    def tile_index(self, factor: int) -> Any:
        """0 without parts along `factor`; rows of a part are no stretch of a dim."""
        if factor == self.factor:
            raise PartsMeet(Meeting(self.op, self.op.results[0]))
        return jnp.int32(0)

    def is_first(self, factor: int) -> Any:
        return self.part == 0 if factor == self.factor else jnp.bool_(True)

    def once(self, run: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        return run()

    def last_effects(self) -> Sequence[Any]:
        return ()

    def ran(self, token: Any) -> None:
        pass

    def shardings(self) -> Sequence[Any]:
        return ()


class PartWriter:
    """Writer of an op's form on one part."""

    def __init__(
        self, partition: Partition, axis: int, parts: Parts, reader: FunctionReader
    ) -> None:
        self._partition, self._axis, self._parts = partition, axis, parts
        self._reader = reader

    def write(
        self, item: LocalOp, operands: Sequence[Operand], part: Value
    ) -> tuple[list[Op], list[Operand]]:
        """Ops and results of an op without regions on one part.

        Args:
          operands: of the part.
          part: number of the part, an int32 scalar.
        """
        op, rule = item.op, self._partition.rules[item.op.id]
        factor = self._partition.loops[self._axis][op.id]
        if factor < 0 or rule.local is None:
            params = op.params
            if factor >= 0 and rule.localize is not None:
                shapes = [x.type.shape for x in operands]
                params = rule.localize(params, shapes, [out.shape for out in item.outs])
            results = [
                Value(-1, dataclasses.replace(out.value.type, shape=out.shape), out.value.name)
                for out in item.outs
            ]
            new = op.with_parts(tuple(operands), tuple(results), ())
            return [dataclasses.replace(new, params=params, key=None)], list(results)

        def local(part: Any, *args: Any) -> Sequence[Any]:
            if rule.at_positions is not None:
                (dims,) = rule.results
                (shape,) = (r.type.shape for r in op.results)
                return rule.at_positions(
                    op,
                    args,
                    [
                        self._parts.positions(n, part)
                        if factor in rule.factors_on(dims, d)
                        else None
                        for d, n in enumerate(shape)
                    ],
                )
            context = _Part(self._partition, op, factor, self._parts, part)
            return run_local(context, rule, op, args)

        return self.traced(local, (part, *operands), op, [out.value.name for out in item.outs])

    def traced(
        self,
        fun: Callable[..., Sequence[Any]],
        operands: Sequence[Operand],
        near: Op | None = None,
        names: Sequence[str] = (),
    ) -> tuple[list[Op], list[Operand]]:
        """Ops of a function, with source, scope and pass of the op `near`."""
        ops, results = self._reader.read(fun, operands)
        if near is not None:
            for op in ops:
                op.origin, op.scope, op.backward = near.origin, near.scope, near.backward
        made = {id(r) for op in ops for r in op.results}
        for name, result in zip(names, results, strict=False):
            if isinstance(result, Value) and id(result) in made:
                result.name = name
        return ops, results
