"""Module rewriters: a module in, a module out, region by region and op by op."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.ir.numbering import number


class Rewriter:
    """Writes a module anew with fresh values and ops, as a module never changes.

    The base class copies. A subclass overrides `ops` to drop, add or join ops of a region, `op` to
    change one, `value` to change types of values.

    Attributes:
      module: the module that is rewritten.
      new: by id of a value, the value in its place, as far as they are made.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.new: dict[int, Value] = {}

    def run(self) -> Module:
        """The rewritten module; ops whose results nothing uses are dropped."""
        module = self.module
        body = self.region(module.body)
        new = dataclasses.replace(module, body=body, values=[], ops=[], constants={})
        number(new, self.constants())
        return new

    def constants(self) -> Mapping[int, tuple[Value, Any]]:
        """Arrays that the new module closes over, with their values, by any distinct keys."""
        module = self.module
        return {i: (self.value(module.values[i]), a) for i, a in module.constants.items()}

    def region(self, old: Region) -> Region:
        """The region in the place of `old`."""
        args = tuple(map(self.value, old.args))
        ops = tuple(self.ops(old))
        return Region(args, ops, tuple(map(self.operand, old.results)))

    def ops(self, old: Region) -> Sequence[Op]:
        """The ops of the region in the place of `old`."""
        return [self.op(op) for op in old.ops]

    def op(self, old: Op) -> Op:
        """The op in the place of `old`."""
        operands, regions, results = self.parts(old)
        return dataclasses.replace(old, operands=operands, regions=regions, results=results)

    def parts(self, old: Op) -> tuple[tuple[Operand, ...], tuple[Region, ...], tuple[Value, ...]]:
        """Operands, regions and results of the op in the place of `old`."""
        operands = tuple(map(self.operand, old.operands))
        regions = tuple(map(self.region, old.regions))
        return operands, regions, tuple(map(self.value, old.results))

    def operand(self, x: Operand) -> Operand:
        """The operand in the place of `x`."""
        return self.value(x) if isinstance(x, Value) else x

    def value(self, old: Value) -> Value:
        """The value in the place of `old`, made on demand."""
        found = self.new.get(old.id)
        if found is None:
            found = self.new[old.id] = Value(-1, old.type, old.name)
        return found
