"""Comparison of two programs that differ in extents alone, as traces of one function do."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from partir_search.ir.core import Module, Op, Operand, Region, TensorType, Value
from partir_search.ir.rule import OpRule


class SameStructure:
    """Comparison of two programs op by op, and of what mesh axes divide.

    Attributes:
      holds: True if ops, names, operands and rules are equal but for extents, and every divisor of
        the number of devices divides the same extents of both.
      grows: True if a value of the second program has more bytes.
    """

    def __init__(
        self,
        base: Module,
        module: Module,
        rules: tuple[Sequence[OpRule], Sequence[OpRule]],
        devices: int,
    ) -> None:
        """Compares `module` with `base`.

        Args:
          base, module: the programs.
          rules: rules of both programs, by op id.
          devices: number of devices of the mesh.
        """
        self._devices, self.grows = devices, False
        # By ids: one program's ops share few types and literals.
        self._types: dict[tuple[int, int], bool] = {}
        self._literals: dict[tuple[int, int], bool] = {}
        self.holds = (
            len(base.ops) == len(module.ops)
            and len(base.values) == len(module.values)
            and (base.ties, base.donated, base.alike) == (module.ties, module.donated, module.alike)
            and list(base.constants) == list(module.constants)
            and base.large_constants() == module.large_constants()
            and all(map(self._values, base.values, module.values))
            and _signature(base.body) == _signature(module.body)
            and all(map(self._ops, base.ops, module.ops))
            and self._rules(*rules)
        )

    def _values(self, a: Value, b: Value) -> bool:
        if a.name != b.name:
            return False
        key = id(a.type), id(b.type)
        known = self._types.get(key)
        if known is None:
            known = self._types[key] = self._type(a.type, b.type)
        return known

    def _type(self, a: TensorType, b: TensorType) -> bool:
        self.grows |= b.nbytes > a.nbytes
        return a.dtype == b.dtype and self._extents(a.shape, b.shape)

    def _extents(self, a: Sequence[int], b: Sequence[int]) -> bool:
        """True if divisors of the number of devices divide the same extents, none of them zero."""
        n = self._devices
        return len(a) == len(b) and all(
            x == y or (x > 0 and y > 0 and math.gcd(x, n) == math.gcd(y, n))
            for x, y in zip(a, b, strict=True)
        )

    def _ops(self, a: Op, b: Op) -> bool:
        """True if two ops with equal ids are equal but for extents and params."""
        if (
            a.prim != b.prim
            or len(a.operands) != len(b.operands)
            or len(a.results) != len(b.results)
            or (a.effect, a.backward, a.count) != (b.effect, b.backward, b.count)
        ):
            return False
        for x, y in zip(a.operands, b.operands, strict=True):
            if isinstance(x, Value) and isinstance(y, Value):
                if x.id != y.id:
                    return False
            elif not self._same_sign(x, y):
                return False
        for r, s in zip(a.results, b.results, strict=True):
            if r.id != s.id:
                return False
        return len(a.regions) == len(b.regions) and all(map(_same_region, a.regions, b.regions))

    def _same_sign(self, a: Operand, b: Operand) -> bool:
        """True for two literals that are both zero, or both not."""
        if isinstance(a, Value) or isinstance(b, Value):
            return False
        key = id(a), id(b)
        known = self._literals.get(key)
        if known is None:
            known = self._literals[key] = a.is_zero() == b.is_zero()
        return known

    def _rules(self, base: Sequence[OpRule], rules: Sequence[OpRule]) -> bool:
        pairs = {(id(a), id(b)): (a, b) for a, b in zip(base, rules, strict=True)}
        return all(self._rule(a, b) for a, b in pairs.values())

    def _rule(self, a: OpRule, b: OpRule) -> bool:
        """True if rules are equal but for extents; factors before others, and of windows, agree."""
        if a is b:
            return True
        fixed = {f for group in a.major_factors for f in group}
        fixed |= {a.operands[r.operand][r.dim] for r in a.reads}
        return (
            self._extents(a.sizes, b.sizes)
            and all(a.sizes[f] == b.sizes[f] for f in fixed if f >= 0)
            and all(same_but_for_numbers(getattr(a, field), getattr(b, field)) for field in _FIELDS)
        )


_FIELDS = tuple(f.name for f in dataclasses.fields(OpRule) if f.name != "sizes")


def same_but_for_numbers(a: Any, b: Any) -> bool:
    """True if two records are equal, functions and floating-point figures apart."""
    if a is b:
        return True
    if callable(a) and callable(b):
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return True
    if dataclasses.is_dataclass(a):
        names = (f.name for f in dataclasses.fields(a))
        return all(same_but_for_numbers(getattr(a, n), getattr(b, n)) for n in names)
    return bool(a == b)


def _same_region(a: Region, b: Region) -> bool:
    return _signature(a) == _signature(b)


def _signature(region: Region) -> tuple[list[int], list[int], list[int | None]]:
    """Ids of a region's arguments, ops and results; None for a literal."""
    results = [x.id if isinstance(x, Value) else None for x in region.results]
    return [v.id for v in region.args], [op.id for op in region.ops], results
