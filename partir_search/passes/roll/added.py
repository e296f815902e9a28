"""Carries only added to by each layer: gradients of values read by all layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from partir_search.ir.core import Op, Operand, Value
from partir_search.ir.role import Role
from partir_search.rules.registry import role_of


@dataclasses.dataclass(frozen=True, slots=True)
class Added:
    """A carry of a scan, the sum of a first value and of a value of each layer.

    Attributes:
      number: position among the carries.
      additions: additions of a layer, each to the sum of the one before.
    """

    number: int
    additions: tuple[Op, ...]

    @property
    def addition(self) -> Op:
        """The last addition of a layer."""
        return self.additions[-1]


def added_carries(scan: Op) -> list[Added]:
    """Carries of a scan read by one addition a layer, or by a chain of additions, and no other op.

    Without a carry of a further use, the sum may start from zeros, in parts of the layers.
    """
    (body,) = scan.regions
    consts, count = int(scan.params["num_consts"]), int(scan.params["num_carry"])
    readers: dict[Value, list[Op]] = {}
    for op in body.ops:
        for _, x in op.inputs():
            readers.setdefault(x, []).append(op)
    results = [x for x in body.results if isinstance(x, Value)]
    found: list[Added] = []
    for number in range(count):
        value, chain = body.args[consts + number], list[Op]()
        while value not in results and len(readers.get(value, ())) == 1:
            (reader,) = readers[value]
            if role_of(reader) is not Role.ADDITION:
                break
            chain.append(reader)
            value = reader.results[0]
        else:
            once = results.count(value) == 1 and not readers.get(value)
            if chain and once and body.results[number] is value:
                found.append(Added(number, tuple(chain)))
    return found


def terms_of(carry: Value, additions: Sequence[Op]) -> tuple[Value, ...]:
    """Values added to a carry by a chain of additions; () if one is a number or a wider array."""
    terms, total = list[Operand](), carry
    for addition in additions:
        terms += [x for x in addition.operands if x is not total]
        total = addition.results[0]
    found = tuple(x for x in terms if isinstance(x, Value) and x.type.shape == carry.type.shape)
    return found if len(found) == len(additions) == len(terms) else ()
