"""Values of a region computed on demand, by jax arrays."""

from __future__ import annotations

import functools
from collections.abc import Container, Mapping, Sequence
from typing import Any

from partir_search.ir.analysis.reductions import zeros_made
from partir_search.ir.analysis.row_sums import adds_to_zeros
from partir_search.ir.core import Op, Operand, Region, Value
from partir_search.ir.data_flow import Emit
from partir_search.ir.interpreter import run_whole
from partir_search.ir.role import Role
from partir_search.ir.run_region import run_region
from partir_search.rules.registry import RuleTable, role_of

Arrays = Mapping[Value, Any]


class BodyValues:
    """Computes values of a region from values that are known.

    Attributes:
      constants: arrays of the module's constants, read in regions without being passed.
    """

    def __init__(self, region: Region, constants: Arrays) -> None:
        self.constants = constants
        self._table = RuleTable()
        self._ops = region.ops
        self._maker = {r: i for i, op in enumerate(region.ops) for r in op.results}

    def compute(self, wanted: Sequence[Operand], known: Arrays) -> list[Any]:
        """Arrays of operands, computed from known values.

        Args:
          wanted: operands of ops of the region.
          known: arrays by value; ops behind these values are not run.
        """
        ops, _ = self._behind(wanted, known)
        region = Region((), tuple(self._ops[i] for i in ops), tuple(wanted))
        return self._run(region, (), {**self.constants, **known})

    def rows_added(self, x: Operand) -> Op | None:
        """Maker of `x`, if the maker adds rows at indices to zeros; None for all further makers."""
        op = self._op_of(x)
        if op is None or role_of(op) is not Role.SCATTER:
            return None
        return op if adds_to_zeros(op, self._table(op), self._zeros) else None

    def rows_of(self, op: Op) -> Operand:
        """Rows added by an op of `rows_added`."""
        return op.operands[self._table(op).update_operand]

    @functools.cached_property
    def _zeros(self) -> frozenset[int]:
        """Ids of values of the region known to be zero."""
        return zeros_made((op, self._table(op)) for op in self._ops if not op.regions)

    def _op_of(self, x: Operand) -> Op | None:
        at = self._maker.get(x) if isinstance(x, Value) else None
        return None if at is None else self._ops[at]

    def read(self, wanted: Sequence[Operand], known: Container[Value]) -> set[Value]:
        """Values read to compute operands from known values, of values not made in the region."""
        return self._behind(wanted, known)[1]

    def _behind(
        self, wanted: Sequence[Operand], known: Container[Value]
    ) -> tuple[list[int], set[Value]]:
        """Positions of the ops behind operands, and the values read that no op makes."""
        ops: set[int] = set()
        read: set[Value] = set()
        todo = [x for x in wanted if isinstance(x, Value)]
        while todo:
            x = todo.pop()
            at = self._maker.get(x)
            if at is None:
                read.add(x)
            elif x not in known and at not in ops:
                ops.add(at)
                todo += [v for _, v in self._ops[at].inputs()]
        return sorted(ops), read

    def call(self, region: Region, args: Sequence[Any], known: Mapping[int, Any]) -> list[Any]:
        """Results of a region of an op on `args`.

        Args:
          known: results known beforehand, by position; ops behind these are not run.
        """
        if not known:
            return self._run(region, args, self.constants)
        given = dict(zip(region.args, args, strict=True))
        results = enumerate(region.results)
        given |= {x: known[i] for i, x in results if i in known and isinstance(x, Value)}
        return BodyValues(region, self.constants).compute(region.results, given)

    def _run(self, region: Region, args: Sequence[Any], outer: Arrays) -> list[Any]:
        return run_region(region, args, outer, self._run_op, self._emit_of)

    def _run_op(self, op: Op, ins: Sequence[Any]) -> Sequence[Any]:
        return run_whole(self._table(op), op, ins)

    def _emit_of(self, op: Op) -> Emit:
        emit = self._table(op).emit
        assert emit is not None, op.prim
        return emit
