"""Fingerprints of ops and of groups of ops: equal for equal computations on other values."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.rules.registry import rule_key

LiteralParts = tuple[str, Any, Any]  # number, shape and dtype
Parts = tuple[Hashable, tuple[LiteralParts | None, ...], Hashable]


class Fingerprints:
    """Fingerprints of the ops of a module, cached by op id."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._known: dict[int, Parts] = {}

    def __call__(self, op: Op) -> Hashable:
        """Rule key, literals and regions of an op; not the values that it reads and makes."""
        return self.parts(op)

    def parts(self, op: Op) -> Parts:
        """Rule key, (number, shape, dtype) of literal operands, and regions of an op."""
        found = self._known.get(op.id)
        if found is None:
            literals = tuple(_literal(x) for x in op.operands)
            regions = tuple(self._region(r) for r in op.regions)
            found = self._known[op.id] = rule_key(op), literals, regions
        return found

    def _region(self, region: Region) -> Hashable:
        names = {v.id: n for n, v in enumerate(region.args)}

        def name(x: Operand) -> Hashable:
            """Number of a value in the region; a constant keeps its id in the program."""
            return names.get(x.id, (x.id,)) if isinstance(x, Value) else _literal(x)

        ops: list[Hashable] = []
        for op in region.ops:
            ops.append((self(op), tuple(map(name, op.operands))))
            for r in op.results:
                names[r.id] = len(names)
        types = tuple((v.type.shape, v.type.dtype) for v in region.args)
        return types, tuple(ops), tuple(map(name, region.results))

    def chain(self, ops: Sequence[Op]) -> tuple[Hashable, list[Value]]:
        """Fingerprint of ops in program order, and the values read from outside, by first use."""
        inside = {r.id: (i, k) for i, op in enumerate(ops) for k, r in enumerate(op.results)}
        entering: dict[int, int] = {}
        values: list[Value] = []
        parts: list[Hashable] = []
        for op in ops:
            reads: list[Hashable] = []
            for x in op.operands:
                if not isinstance(x, Value):
                    reads.append(None)
                elif x.id in inside:
                    reads.append(inside[x.id])
                else:
                    if x.id not in entering:
                        entering[x.id] = len(values)
                        values.append(x)
                    reads.append(entering[x.id])
            parts.append((self(op), tuple(reads)))
        return tuple(parts), values


def _literal(x: Operand) -> LiteralParts | None:
    return None if isinstance(x, Value) else (repr(x.number), x.type.shape, x.type.dtype)
