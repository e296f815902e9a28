"""Value numbers: the first of all values of a region computed in the same way."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from partir_search.ir.core import Literal, Module, Op, Operand, Region, Value
from partir_search.rules.registry import edges_of


def first_equals(module: Module, print_of: Callable[[Op], Hashable]) -> dict[int, Value]:
    """By value id, the first value of the region known to be equal; no entry for a first value.

    Results of equal ops on equal operands are equal, and arguments of a region given equal values.

    Args:
      print_of: function from an op to a fingerprint, equal for equal computations.
    """
    firsts: dict[int, Value] = {}

    def first(x: Operand) -> Hashable:
        return None if isinstance(x, Literal) else firsts.get(x.id, x).id

    def visit(region: Region) -> None:
        seen: dict[Hashable, Op] = {}
        for op in region.ops:
            if op.effect:
                continue
            key = print_of(op), tuple(map(first, op.operands))
            equal = seen.setdefault(key, op)
            if equal is not op:
                firsts.update((r.id, e) for r, e in zip(op.results, equal.results, strict=True))
            elif op.regions:
                enter(op)
                for inner in op.regions:
                    visit(inner)

    def enter(op: Op) -> None:
        """Finds equal arguments of an op's regions."""
        edges = edges_of(op)
        carried = {(to, argument) for _, _, to, argument in edges.carries}
        seen: dict[Hashable, Value] = {}
        for operand, region, argument, lead in edges.inputs:
            if (region, argument) in carried:
                continue
            value, x = op.regions[region].args[argument], op.operands[operand]
            if isinstance(x, Value):
                equal = seen.setdefault((region, first(x), lead), value)
                if equal is not value:
                    firsts[value.id] = equal

    visit(module.body)
    return firsts
