"""Copying a module op by op: what rewrites of it start from, as modules never change."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.ir.numbering import number


class Copier:
    """Fresh values and ops for those of one module."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.fresh: dict[int, Value] = {}

    def value(self, old: Value) -> Value:
        """The copy of a value."""
        if old.id not in self.fresh:
            self.fresh[old.id] = Value(-1, old.type, old.name)
        return self.fresh[old.id]

    def outer(self, x: Operand) -> Operand:
        """The copy of an operand."""
        return self.value(x) if isinstance(x, Value) else x

    def copy(self, op: Op, inside: Mapping[int, Value], suffix: str = "") -> Op:
        """A copy that reads `inside` first; results are fresh, or named with `suffix`."""

        def read(x: Operand) -> Operand:
            return inside[x.id] if isinstance(x, Value) and x.id in inside else self.outer(x)

        results = tuple(
            Value(-1, r.type, r.name + suffix) if suffix else self.value(r) for r in op.results
        )
        return dataclasses.replace(
            op,
            operands=tuple(map(read, op.operands)),
            results=results,
            regions=tuple(self.region(r, suffix) for r in op.regions),
        )

    def region(self, old: Region, suffix: str) -> Region:
        """A copy of a region."""
        inside = {v.id: Value(-1, v.type, v.name + suffix) for v in old.args}
        ops = []
        for op in old.ops:
            new = self.copy(op, inside, suffix or "_")
            ops.append(new)
            inside |= {r.id: v for r, v in zip(op.results, new.results, strict=True)}
        results = tuple(
            inside[x.id] if isinstance(x, Value) and x.id in inside else self.outer(x)
            for x in old.results
        )
        return Region(tuple(inside[v.id] for v in old.args), tuple(ops), results)

    def finish(self, args: tuple[Value, ...], ops: Sequence[Op]) -> Module:
        """A module of the copied args and ops, numbered."""
        results = tuple(self.outer(x) for x in self.module.body.results)
        new = dataclasses.replace(
            self.module,
            body=Region(args, tuple(ops), results),
            values=[],
            ops=[],
            constants={},
        )
        module = self.module
        number(new, {i: (self.value(module.values[i]), a) for i, a in module.constants.items()})
        return new
