"""Text of local instructions, equal for equal work in every process and program."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from partir_search.ir.core import Literal, Shape, dtype_name
from partir_search.ir.partition import Partition
from partir_search.lowering.local_ir import Instruction, LocalOp, LocalRegion, Reshard, RingTurn
from partir_search.lowering.local_value import LocalValue, Source

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_IMPLIED = ("layout", "partial")  # fields of steps that follow from the values' shapes


class Texts:
    """Texts of instructions under one partition, each op's params written once."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._params: dict[Any, str] = {}
        self._loops: dict[int, str] = {}

    def of(self, item: Instruction) -> str:
        """Text of an instruction without the values' identities.

        Reshards: kind, axes with the mesh, dims, types of source and target. Ops: primitive, params
        and types on the device, and the regions' instructions with their data flow.
        """
        if isinstance(item, Reshard):
            fields = dataclasses.fields(item.step)
            details = [
                f"{f.name}={getattr(item.step, f.name)}" for f in fields if f.name not in _IMPLIED
            ]
            where = f"{item.step.kind} on {self._partition.mesh.sizes} {' '.join(details)}"
            return f"{where}: {_type(item.source)} -> {_type(item.target)}"
        parts = [item.op.prim, self._op(item), *item.details()]
        parts += [_type(x) for x in item.ins]
        parts += ["->", *map(_type, item.outs)]
        parts += [f"{{{self.region(region)}}}" for region in item.regions]
        return " ".join(parts)

    def region(self, region: LocalRegion) -> str:
        """Text of a region with the data flow."""
        return self.flow(region.steps, region.args, region.results)

    def flow(
        self,
        steps: Sequence[Instruction],
        entering: Iterable[LocalValue],
        leaving: Iterable[Source],
    ) -> str:
        """Text of instructions with their data flow: values are numbered in order of appearance."""
        numbers: dict[int, int] = {}
        unused = itertools.count()
        lines = []
        for x in entering:
            numbers[x.id] = next(unused)
            lines.append(f"{numbers[x.id]}:{_type(x)}")

        def number(x: Source) -> str:
            if isinstance(x, Literal):
                return "literal"
            if x.id not in numbers:
                numbers[x.id] = next(unused)
            return str(numbers[x.id])

        for item in steps:
            read = (item.source,) if isinstance(item, Reshard) else item.ins
            operands = ",".join(map(number, (*read, *item.received)))
            for x in item.outs:
                numbers[x.id] = next(unused)  # a value made twice has two numbers
            made = ",".join(str(numbers[x.id]) for x in item.outs)
            lines.append(f"{made}={self.of(item)}({operands})")
        return "\n".join([*lines, f"return {','.join(map(number, leaving))}"])

    def _op(self, item: LocalOp) -> str:
        """Params on the device, and the loops if the op's local form depends on them."""
        op, rule = item.op, self._partition.rules[item.op.id]
        plain = rule.localize is not None and rule.local is None and not isinstance(item, RingTurn)
        shapes: tuple[Any, ...] = ()
        if plain:
            shapes = tuple(_shape(x) for x in item.ins), tuple(x.shape for x in item.outs)
        key = id(op.params if op.key is None else op.key), shapes
        found = self._params.get(key)
        if found is None:
            params: Mapping[str, Any] = op.params
            if plain:
                assert rule.localize is not None
                params = rule.localize(params, *map(list, shapes))
            if item.regions:
                params = {k: v for k, v in params.items() if not _is_program(v)}
            found = self._params[key] = stable(params)
        if rule.local is None and not isinstance(item, RingTurn):
            return found
        loops = [(a, int(self._partition.loops[a][op.id])) for a in self._partition.order]
        return f"{found} loops {loops} on {self._partition.mesh.sizes}"


def stable(x: Any) -> str:
    """Text of a param, equal in every process: no addresses, and arrays by their contents."""
    if isinstance(x, Mapping):
        return "{" + ",".join(f"{k}:{stable(x[k])}" for k in sorted(x, key=str)) + "}"
    if isinstance(x, (tuple, list)):
        return f"{type(x).__name__}({','.join(map(stable, x))})"
    if isinstance(x, (set, frozenset)):
        return f"set({','.join(sorted(map(stable, x)))})"
    if isinstance(x, enum.Enum):
        return str(x)
    if isinstance(x, np.ndarray):
        return f"{x.dtype}{x.shape}{hashlib.sha256(x.tobytes()).hexdigest()[:16]}"
    if callable(x) and hasattr(x, "__qualname__"):
        return f"{x.__module__}.{x.__qualname__}"
    return _ADDRESS.sub("", repr(x))


def _is_program(x: Any) -> bool:
    """True for one or several jaxprs, or functions, all represented by an op's regions."""
    if isinstance(x, (tuple, list)):
        return bool(x) and all(map(_is_program, x))
    return hasattr(x, "eqns") or hasattr(x, "jaxpr") or callable(x)


def _shape(x: Source) -> Shape:
    return x.shape if isinstance(x, LocalValue) else x.type.shape


def _type(x: Source) -> str:
    """Type on the device; of a literal also the number.

    Of an integer only the comparison with zero counts: numbers folded into the random keys of
    layers do not tell layers apart.
    """
    if isinstance(x, LocalValue):
        sums = f"+{x.partial}" if x.partial else ""
        return f"{dtype_name(x.value.type.dtype)}[{','.join(map(str, x.shape))}]{sums}"
    number = x.number if jnp.issubdtype(x.type.dtype, np.inexact) else x.is_zero()
    return f"{dtype_name(x.type.dtype)} {number}"
