"""Dense ids of values and ops in program order, after removal of dead ops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from partir_search.ir.core import Module, Op, Operand, Region, Value


def number(module: Module, constants: Mapping[int, tuple[Value, Any]]) -> None:
    """Drops dead ops, then gives values and ops dense ids in program order.

    Args:
      constants: (value, array) by `id` of the array; stored in the module by value id.
    """
    values: list[Value] = []
    ops: list[Op] = []

    def add(value: Value) -> None:
        value.id = len(values)
        values.append(value)

    def visit(region: Region) -> None:
        region.ops = _live(region)
        for op in region.ops:
            at = len(ops)
            op.id = values[at].id if at < len(values) else at  # a shared int object saves memory
            ops.append(op)
            for inner in op.regions:
                for arg in inner.args:
                    add(arg)
                visit(inner)
            for result in op.results:  # `add`, without the call: the hot loop
                result.id = len(values)
                values.append(result)

    for arg in module.body.args:
        add(arg)
    module.constants = {}
    for value, array in constants.values():
        add(value)
        module.constants[value.id] = array
    visit(module.body)
    module.values, module.ops = values, ops


def _live(region: Region) -> tuple[Op, ...]:
    """Ops of the region that have effects or used results."""
    used = set(map(id, region.results))
    kept: list[Op] = []
    for op in reversed(region.ops):
        if op.effect or not used.isdisjoint(map(id, op.results)):
            kept.append(op)
            used.update(map(id, op.operands))
            for inner in op.regions:
                used.update(map(id, _captured(inner)))
    kept.reverse()
    return tuple(kept)


def _captured(region: Region) -> Iterator[Operand]:
    """Operands of ops inside of a region; constants among them are the only values captured."""
    for op in region.ops:
        yield from op.operands
        for inner in op.regions:
            yield from _captured(inner)
